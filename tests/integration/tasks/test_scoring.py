"""Score jobs through the real ledger, including the child process of isolated scorers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.errors import CannotJudge, InvalidRequest
from tasks.jobs.model import JobRequest
from tasks.scoring.isolation import Isolation
from tasks.scoring.registry import find
from tasks.scoring.scorer import Sample
from tests.conftest import ROOT
from tests.support.fleet import Fleet
from tests.support.programs import wait_until

A = "a" * 5000
ENDLESS = r"\boxed{9^{9^{9^9}}}"


def run(fleet: Fleet, items: list[dict[str, Any]], *scorers: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    job = fleet.core.submitter.submit(JobRequest(kind="score", items=items, spec={"scorers": list(scorers)}, **fields))
    hand = fleet.hire("cpu")
    hand.work()
    hand.leave()
    assert fleet.job(job).state == "done"
    return fleet.rows(job)


def test_a_score_job_returns_score_and_parts_or_an_error_per_item(fleet: Fleet) -> None:
    chat = [{"role": "assistant", "content": "<think>2+3</think><answer>5</answer>"}]
    rows = run(
        fleet,
        [
            {"id": "right", "group_id": "g1", "response": chat, "reference": "5"},
            {"id": "wrong", "group_id": "g1", "response": "<think>2+3</think><answer>6</answer>", "reference": "5"},
            {"id": "bare", "group_id": "g2", "response": "5", "reference": 5},
            {"id": "alone", "group_id": "g2", "response": "<think>2+3</think><answer>5</answer>"},
            {"id": "slow", "group_id": "g2", "response": f"<think>a</think>\n<answer>{A}!</answer>", "reference": "5"},
        ],
        {"name": "format", "gate": True},
        {"name": "numeric_match", "weight": 3.0},
        {"name": "regex", "as": "plain", "options": {"read": "answer", "pattern": "(a+)+$|5|6", "timeout_s": 0.1}},
    )  # fmt: skip
    assert [(row["id"], row["group_id"], row["status"], row["score"]) for row in rows] == [
        ("right", "g1", "ok", 1.0),
        ("wrong", "g1", "ok", 0.25),
        ("bare", "g2", "ok", 0.0),
        ("alone", "g2", "failed", None),
        ("slow", "g2", "failed", None),
    ]
    assert rows[1]["parts"] == {"format": 1.0, "numeric_match": 0.0, "plain": 1.0}
    assert rows[2]["parts"] == {"format": 0.0, "numeric_match": 1.0, "plain": 1.0}
    assert [row["error"]["type"] for row in rows[3:]] == ["reference_missing", "regex_timeout"]
    assert [row["valid"] for row in rows] == [True, True, True, False, False]


def test_a_formula_that_never_terminates_fails_only_its_item(fleet: Fleet) -> None:
    items = [
        {"id": str(n), "response": text, "reference": r"\frac{1}{2}"}
        for n, text in enumerate([r"\boxed{0.5}", ENDLESS, r"it is $\frac{2}{4}$", "1"])
    ]
    rows = run(fleet, items, {"name": "math_equal", "options": {"timeout_s": 4.0}})
    assert [row["score"] for row in rows] == [1.0, None, 1.0, 0.0]
    assert rows[1]["error"]["type"] == "scorer_timeout"
    again = run(fleet, items, {"name": "math_equal", "options": {"timeout_s": 4.0}})
    assert [row["cached"] for row in again] == [True, False, True, True]


def test_an_invalid_job_is_refused_at_submission(fleet: Fleet) -> None:
    with pytest.raises(InvalidRequest, match=r"^spec\.scorers\[1\]\.options\.tolerance: ") as caught:
        run(fleet, [{"response": "5"}], {"name": "format"}, {"name": "numeric_match", "options": {"tolerance": "x"}})
    assert caught.value.field == "spec.scorers[1].options.tolerance"
    with pytest.raises(InvalidRequest, match=r"^items\[1\]\.response: "):
        run(fleet, [{"response": "5"}, {"response": None}], {"name": "format"})


@pytest.fixture
def isolation() -> Iterator[Isolation]:
    isolation = Isolation()
    yield isolation
    isolation.close()


def judge(isolation: Isolation, name: str, text: str, *references: str, **options: Any) -> float:
    scorer = find(name)
    return isolation.score(scorer, scorer.options.model_validate(options), Sample(text, references))


def reason(isolation: Isolation, name: str, text: str, *references: str, **options: Any) -> str:
    with pytest.raises(CannotJudge) as caught:
        judge(isolation, name, text, *references, **options)
    return caught.value.reason


@pytest.mark.parametrize(
    ("response", "reference", "score"),
    [
        ("The answer is 5.", "5", 1.0),
        ("5", "4", 0.0),
        (r"\boxed{\frac12}", "0.5", 1.0),
        ("The answer is $x+1$.", "1+x", 1.0),
        ("x+1", "1", 0.0),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", 1.0),
        (r"$\sqrt{8}$", r"2\sqrt{2}", 1.0),
        (r"\boxed{\{1,2\}}", r"\{2,1\}", 1.0),
        ("(1,2]", "(1,2]", 1.0),
        ("(1,2)", "(1,2]", 0.0),
        (r"\boxed{x=5}", "5", 1.0),
        (r"\boxed{\text{yes}}", "yes", 1.0),
        ("5", "2+3=5\n#### 5", 1.0),
        ("", "5", 0.0),
        ("no idea", "5", 0.0),
    ],
)
def test_mathematics_is_compared_by_value(response: str, reference: str, score: float) -> None:
    assert judge(SHARED, "math_equal", response, reference) == score


SHARED = Isolation()


@pytest.fixture(scope="module", autouse=True)
def _close_shared() -> Iterator[None]:
    yield
    SHARED.close()


def test_a_scorer_over_its_time_limit_is_killed_and_the_next_item_is_scored(isolation: Isolation) -> None:
    assert reason(isolation, "math_equal", ENDLESS, "5", timeout_s=0.5) == "scorer_timeout"
    assert judge(isolation, "math_equal", "5", "5") == 1.0


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"pattern": "^(a+)+$"}, '"' + "a" * 100 + '!"'),
        ({"uniqueItems": True}, "[" + ",".join(f'{{"a":{n}}}' for n in range(30_000)) + "]"),
        ({"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 4}, "[" * 40 + "1" + "]" * 40),
    ],
)
def test_no_schema_hangs_a_worker(schema: dict[str, Any], text: str) -> None:
    assert reason(SHARED, "json_schema", text, schema=schema, timeout_s=0.5) == "scorer_timeout"
    assert judge(SHARED, "json_schema", "[]", schema={"type": "array"}) == 1.0


def test_errors_of_the_child_process_reach_the_caller(isolation: Isolation) -> None:
    assert reason(isolation, "math_equal", "5") == "reference_missing"
    assert reason(isolation, "json_schema", "5", schema={"$ref": "#/gone"}) == "schema_unusable"


def test_a_killed_child_process_is_restarted_without_an_error(isolation: Isolation) -> None:
    assert judge(isolation, "json_schema", "5", schema=True) == 1.0
    child = isolation._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    assert judge(isolation, "json_schema", "5", schema=True) == 1.0


def test_the_child_process_exits_with_its_parent() -> None:
    code = """
import os
from tasks.scoring.isolation import Isolation
from tasks.scoring.registry import find
from tasks.scoring.scorer import Sample
isolation, scorer = Isolation(), find("json_schema")
isolation.score(scorer, scorer.options.model_validate({"schema": True}), Sample("5"))
print(isolation._child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pid = int(ended.stdout)

    def is_gone() -> bool:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().split()[2] == "Z"
        except FileNotFoundError:
            return True

    wait_until(is_gone, "the child has ended")
