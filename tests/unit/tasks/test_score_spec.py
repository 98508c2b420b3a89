"""Schema of score jobs: validation with helpful errors, combination of scorers, registration of plug-ins."""

import logging
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tasks.errors import InvalidRequest
from tasks.inference.models import Models
from tasks.jobs.stage import Work
from tasks.jobs.submission.draft import validated
from tasks.judging.kind import Judge
from tasks.judging.rubrics import Rubrics
from tasks.scoring import registry
from tasks.scoring.combination import combine, prepare_scorers, score_item
from tasks.scoring.extraction import extract_text
from tasks.scoring.isolation import isolation
from tasks.scoring.kind import Score
from tasks.scoring.lengths import Tokenizers
from tasks.scoring.model import ScoreItem, ScoreSpec
from tasks.scoring.reference_page import as_markdown
from tests.conftest import ROOT

CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
ADD = '{"name": "add", "arguments": {"a": 2, "b": 3}}'
CHAT = [
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "I will add 2.", "tool_calls": [CALL]},
    {"role": "tool", "content": "7", "tool_call_id": "1"},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "<think>no 4</think>It is "}, {"type": "text", "text": "5"}],
    },
]


def spec(*scorers: dict[str, Any], **fields: Any) -> ScoreSpec:
    return ScoreSpec.model_validate({"scorers": scorers, **fields})


def refusal(model: type[BaseModel], value: object, where: str = "spec") -> str:
    with pytest.raises(InvalidRequest) as caught:
        validated(model, value, where)
    assert str(caught.value).startswith(caught.value.field)
    return str(caught.value)


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        (
            {"name": "numeric_mach"},
            "spec.scorers[0].name: unknown scorer 'numeric_mach'; did you mean 'numeric_match'?",
        ),
        ({"name": "zzz"}, "unknown scorer 'zzz'; scorers are choice_match, contains, exact_match, format,"),
        (
            {"name": "numeric_match", "options": {"tolerance": -1}},
            "spec.scorers[0].options.tolerance: Input should be gr",
        ),
        ({"name": "numeric_match", "options": {"tolerence": 1}}, "spec.scorers[0].options.tolerence: Extra inputs are"),
        ({"name": "regex"}, "spec.scorers[0].options.pattern: Field required"),
        (
            {"name": "regex", "options": {"pattern": "(a"}},
            "spec.scorers[0].options.pattern: is not a valid pattern: missi",
        ),
        ({"name": "regex", "options": {"pattern": "(?:x{9999}){9999}"}}, "options.pattern: repeats too much"),
        ({"name": "regex", "options": {"pattern": "(?x)x { 9 9 9 9 }"}}, "options.pattern: has the flag `x`"),
        ({"name": "regex", "options": {"pattern": "(" * 900 + ")" * 900}}, "options.pattern: is too deeply nested"),
        (
            {"name": "regex", "options": {"pattern": "a", "group": 1}},
            "spec.scorers[0].options: `group` 1 is not in the",
        ),
        (
            {"name": "json_schema", "options": {"schema": {"type": "strin"}}},
            "spec.scorers[0].options.schema: is not a JSON",
        ),
        (
            {"name": "json_schema", "options": {"schema": {"pattern": "("}}},
            "spec.scorers[0].options.schema: is not a JSON",
        ),
        ({"name": "length"}, "spec.scorers[0].options: has no bounds: set `least`, `most`, or both"),
        (
            {"name": "choice_match", "options": {"choices": "AB1"}},
            "spec.scorers[0].options.choices: must be distinct letters",
        ),
        ({"name": "format", "gate": True}, "spec: `scorers` has only gates: add a scorer without `gate`"),
        ({"name": "format", "threshold": 0.5}, "spec.scorers[0]: `threshold` needs `gate`"),
        ({"name": "format", "weight": -1}, "spec: `scorers`: for a mean, weights must not be negative"),
        ({"name": "format", "weight": float("nan")}, "spec.scorers[0].weight: Input should be a finite number"),
    ],
)
def test_an_invalid_scorer_is_refused_with_its_path(scorer: dict[str, Any], said: str) -> None:
    assert said in refusal(ScoreSpec, {"scorers": [scorer]})


def test_a_scorer_used_twice_needs_an_alias() -> None:
    twice = [{"name": "length", "options": {"most": 5}}, {"name": "length", "options": {"most": 9}}]
    assert "two scorers are called 'length': rename one of them with `as`" in refusal(ScoreSpec, {"scorers": twice})
    assert spec(twice[0], twice[1] | {"as": "longer"}).scorers[1].part == "longer"


def test_a_spec_survives_serialization_with_its_defaults() -> None:
    asked = spec({"name": "json_schema", "as": "json", "options": {"schema": {"type": "object"}}}, SHORT)
    assert ScoreSpec.model_validate_json(asked.model_dump_json()) == asked
    assert asked.scorers[0].options["timeout_s"] == 5.0


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({}, "items[0].response: Field required"),
        ({"response": 5}, "items[0].response: Input should be a string or a list of messages"),
        ({"response": [{"content": "5"}]}, "items[0].response.messages[0].role: Field required"),
        (
            {"response": [{"role": "user", "content": "5"}]},
            "items[0].response: must have a message whose role is assistant",
        ),
        ({"response": "5", "refrence": "5"}, "items[0].refrence: Extra inputs are not permitted"),
        ({"response": "5", "reference": True}, "items[0].reference"),
    ],
)
def test_an_invalid_item_is_refused_with_its_path(item: dict[str, Any], said: str) -> None:
    assert refusal(ScoreItem, item, "items[0]").startswith(said)


@pytest.mark.parametrize(
    ("reading", "text"),
    [
        ("answer", "It is 5"),
        ("response", "<think>no 4</think>It is 5"),
        ("all", f"I will add 2.\n\n<tool_call>{ADD}</tool_call>\n\n<think>no 4</think>It is 5"),
        ("tool_calls", f"[{ADD}]"),
    ],
)
def test_the_selected_part_of_a_chat_is_scored(reading: Any, text: str) -> None:
    item = ScoreItem.model_validate({"prompt": CHAT[:1], "response": CHAT[1:]})
    assert extract_text(item.response, reading) == text


def test_unfinished_thinking_leaves_an_empty_answer() -> None:
    assert extract_text("<think>so 5", "answer") == ""
    assert extract_text("so 4</think>5", "answer") == "5"
    assert extract_text("<think>4</think>5<think>and 6", "answer") == "5"
    assert extract_text([], "answer") == ""


def result(scorers: list[dict[str, Any]], item: dict[str, Any], **fields: Any) -> Any:
    asked = spec(*scorers, **fields)
    return score_item(asked, prepare_scorers(asked), ScoreItem.model_validate(item), isolation())


RIGHT = {"name": "numeric_match", "weight": 3.0}
SHORT = {"name": "length", "as": "short", "options": {"most": 1}}


def test_several_scorers_combine_to_a_weighted_mean_with_parts() -> None:
    scored = result([RIGHT, SHORT], {"response": "it is 5", "reference": 5})
    assert (scored.score, scored.parts) == (0.75, {"numeric_match": 1.0, "short": 0.0})


def test_a_sum_does_not_normalize_weights() -> None:
    wordy = SHORT | {"weight": -0.5}
    assert result([RIGHT, wordy], {"response": "5", "reference": 5}, combine="sum").score == 2.5


@pytest.mark.parametrize(
    ("threshold", "response", "score"),
    [(None, "5", 1.0), (None, "555", 0.0), (0.5, "55", 1.0), (0.6, "55", 0.0)],
)
def test_a_failed_gate_makes_the_score_zero_and_keeps_every_part(
    threshold: float | None, response: str, score: float
) -> None:
    gate = {"name": "length", "gate": True, "threshold": threshold, "options": {"most": 1, "margin": 2}}
    scored = result([gate, {"name": "numeric_match"}], {"response": response, "reference": response})
    assert scored.score == score
    assert scored.parts is not None
    assert scored.parts["numeric_match"] == 1.0


def test_a_scorer_that_cannot_judge_fails_the_item_by_name() -> None:
    scored = result([SHORT, RIGHT | {"as": "right"}], {"response": "5"})
    assert (scored.score, scored.error.type) == (None, "reference_missing")
    assert scored.error.message.startswith("right: ")


def test_inexact_weights_still_give_exactly_1_for_a_perfect_item() -> None:
    asked = spec(*[{"name": "length", "as": str(n), "weight": 0.1, "options": {"most": 9}} for n in range(3)])
    assert combine(asked, {"0": 1.0, "1": 1.0, "2": 1.0}) == 1.0


def test_only_scores_dearer_than_a_cache_lookup_are_cached() -> None:
    item = ScoreItem.model_validate({"id": "a", "response": "5", "reference": "5"})
    kind = Score(Judge(Rubrics(None)), Tokenizers(), Models(Path("models")))

    def key_of(item: ScoreItem, **scorer: Any) -> Any:
        (stage,) = kind.stages(spec(scorer))
        return stage.key(Work(0, item))

    assert key_of(item, name="numeric_match") is None
    key = key_of(item, name="math_equal")
    assert key is not None
    assert key == key_of(item.model_copy(update={"id": "b"}), name="math_equal")
    assert key != key_of(item, name="math_equal", options={"digits": 3})


def test_the_cache_key_contains_the_installed_math_verify_version() -> None:
    assert registry.find("math_equal").version.endswith(f"math-verify {version('math-verify')}")


def test_a_job_is_validated_without_importing_worker_libraries() -> None:
    code = """
import sys
from tasks.composition import create_core
from tasks.scoring.model import ScoreSpec
from tasks.scoring.registry import describe
for each in describe():
    required = {"regex": {"pattern": "a"}, "json_schema": {"schema": True}, "length": {"most": 1}}
    ScoreSpec.model_validate({"scorers": [{"name": each["name"], "options": required.get(each["name"], {})}]})
print(*sys.modules)
"""
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    assert not [name for name in loaded if name.split(".")[0] in ("sympy", "math_verify", "rapidfuzz", "torch")]


def test_docs_list_every_scorer_with_current_options() -> None:
    page = (ROOT / "docs/scoring.md").read_text()
    assert as_markdown() in page, "run `make docs`"
    assert [each["name"] for each in registry.describe()] == [each.name for each in registry.BUILT_IN]
    assert all(each["description"] and each["options"]["properties"] for each in registry.describe())


def install(folder: Path, points: str, code: str) -> None:
    """Write the files that pip installs for a package with entry points."""
    about = folder / "polite-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: polite\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[assay.scorers]\n{points}\n")
    (folder / "polite_package.py").write_text(code)


@pytest.fixture
def _fresh_registry() -> Any:
    registry.scorers.cache_clear()
    yield
    registry.scorers.cache_clear()
    sys.modules.pop("polite_package", None)


@pytest.mark.usefixtures("_fresh_registry")
def test_an_installed_package_registers_its_scorers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (ROOT / "docs/scoring.md").read_text().partition("## Your own scorers")[2].partition("```python\n")[2]
    install(tmp_path, "politeness = polite_package:politeness", lines.partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    assert "politeness" in [each["name"] for each in registry.describe()]
    assert result([{"name": "politeness"}], {"response": "yes please"}).score == 1.0
    assert result([{"name": "politeness", "options": {"word": "thanks"}}], {"response": "please"}).score == 0.0
    assert "options.wrd" in refusal(ScoreSpec, {"scorers": [{"name": "politeness", "options": {"wrd": "x"}}]})


@pytest.mark.usefixtures("_fresh_registry")
@pytest.mark.parametrize(
    ("point", "code", "said"),
    [
        ("gone = polite_package:gone", "", "gone = polite_package:gone of polite cannot be loaded: AttributeError"),
        ("worse = polite_package:x", "raise SystemError('no luck')", "cannot be loaded: SystemError: no luck"),
        ("plain = polite_package:plain", "def plain(): ...", "is no scorer: decorate the function with @scorer"),
        (
            "regex = polite_package:regex_",
            "from tasks.scoring.scorers.pattern import regex_",
            "another scorer has this name",
        ),
    ],
)
def test_a_broken_entry_point_is_logged_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, point: str, code: str, said: str
) -> None:
    install(tmp_path, point, code)
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert len(registry.scorers()) == len(registry.BUILT_IN)
    assert said in caplog.text


@pytest.mark.usefixtures("_fresh_registry")
@pytest.mark.parametrize(
    ("body", "error"),
    [("1 / 0", "scorer_failed"), ("float('nan')", "not_a_number"), ("None", "not_a_number"), ("'5'", "not_a_number")],
)
def test_a_scorer_that_fails_is_a_failed_item_not_a_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, error: str
) -> None:
    code = f"from tasks.scoring.scorer import *\n@scorer('bad', Options)\ndef bad(sample, options): return {body}"
    install(tmp_path, "bad = polite_package:bad", code)
    monkeypatch.syspath_prepend(tmp_path)
    scored = result([{"name": "bad"}], {"response": "x"})
    assert (scored.score, scored.error.type) == (None, error)
