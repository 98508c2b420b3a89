"""Composition of rewards from a base score, a judge and penalties: each branch against tables calculated by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import InvalidRequest
from tasks.inference.models import Models
from tasks.jobs.model import ItemError, Result
from tasks.jobs.stage import Work
from tasks.jobs.state.outcome import settle
from tasks.jobs.submission.draft import validated
from tasks.judging.kind import Judge
from tasks.judging.rubrics import Rubrics
from tasks.scoring.combination import prepare_scorers
from tasks.scoring.isolation import isolation
from tasks.scoring.kind import Score
from tasks.scoring.lengths import Tokenizers
from tasks.scoring.model import ScoreItem, ScoreSpec
from tasks.scoring.reward import begin, finish_groups, is_judged, join_judge, reward_of

KIND = Score(Judge(Rubrics(None)), Tokenizers(), Models(Path("models")))
JUDGE = {"profile": "main", "reward_coefficient": 0.5}
GROUP_LENGTH = {"name": "group_length", "scale": 2.0}


def spec(**fields: Any) -> ScoreSpec:
    return ScoreSpec.model_validate(fields)


def advanced(asked: ScoreSpec, work: Work[ScoreItem], result: Result) -> Result:
    """Return the judge's result, joined with the fields carried by its item."""
    judge = next(stage for stage in KIND.stages(asked) if stage.name == "judge")
    return judge.advance(work, result)


def refused(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        validated(ScoreSpec, fields, "spec")
    return str(caught.value)


def item(**fields: Any) -> ScoreItem:
    return ScoreItem.model_validate({"response": "It is 5."} | fields)


def begun(asked: ScoreSpec, one: ScoreItem) -> Result:
    return begin(asked, prepare_scorers(asked), one, isolation(), Tokenizers())


def parts(result: Result) -> dict[str, float]:
    return dict(result.parts or {})


def carried(result: Result) -> dict[str, Any]:
    """Return the result in the form that the next stage reads."""
    carry: dict[str, Any] = json.loads(settle(0, {"id": "a"}, result).outcome)
    return carry


def grouped(asked: ScoreSpec, *rows: tuple[str | None, Result]) -> list[Result]:
    batch = [Work(at, item(group_id=group), carried(result)) for at, (group, result) in enumerate(rows)]
    return finish_groups(asked, batch)


def member(base: float, length: int) -> Result:
    return Result(score=base, parts={"base": base, "response_length": float(length)})


@pytest.mark.parametrize(
    ("known", "reward"),
    [
        ({"base": 1.0}, 1.0),
        ({"base": 1.0, "judge": 8.0}, 1.0 + 0.5 * 8.0),
        ({"base": 1.0, "judge": 8.0, "group_length": 0.25}, 1.0 + 0.5 * 8.0 - 2.0 * 0.25),
        ({"judge": 3.0}, 0.5 * 3.0),
        ({"base": 0.0, "group_length": 1.0}, -2.0),
    ],
)
def test_the_reward_is_base_plus_judge_minus_penalties(known: dict[str, float], reward: float) -> None:
    asked = spec(scorers=[{"name": "numeric_match"}], judge=JUDGE, penalties=[GROUP_LENGTH])
    assert reward_of(asked, known) == reward


def test_an_item_has_its_base_length_and_item_penalties() -> None:
    overlong = {"name": "soft_overlong", "scale": 0.5, "options": {"max_length": 100, "cache_length": 50}}
    asked = spec(scorers=[{"name": "numeric_match"}], penalties=[overlong])
    result = begun(asked, item(reference="5", response_tokens=75))
    expected = {"numeric_match": 1.0, "base": 1.0, "soft_overlong": 0.5, "response_length": 75.0}
    assert (parts(result), result.score) == (expected, 1.0 - 0.5 * 0.5)


def test_without_scorers_the_items_base_score_is_used() -> None:
    asked = spec(penalties=[GROUP_LENGTH])
    assert parts(begun(asked, item(base_score=0.75, response_tokens=9))) == {"base": 0.75, "response_length": 9.0}
    missing = begun(asked, item(response_tokens=9))
    assert missing.error
    assert missing.error.type == "base_score_missing"


def test_a_missing_length_fails_the_item_and_keeps_its_base() -> None:
    result = begun(spec(penalties=[GROUP_LENGTH]), item(base_score=1))
    assert result.error
    assert (result.error.type, parts(result)) == ("length_missing", {"base": 1.0})


@pytest.mark.parametrize(
    ("known", "all_judged", "is_asked"),
    [({"base": 0.0}, False, False), ({"base": 0.0}, True, True), ({"base": 0.1}, False, True), ({}, False, True)],
)
def test_a_base_score_of_0_is_not_judged_by_default(known: dict[str, float], all_judged: bool, is_asked: bool) -> None:
    asked = spec(scorers=[{"name": "numeric_match"}], judge=JUDGE | {"judge_zero_scores": all_judged})
    assert is_judged(asked, known) is is_asked
    assert not is_judged(spec(scorers=[{"name": "numeric_match"}], group_statistics=True), known)


def test_a_judged_item_has_the_judges_parts_and_moves_to_its_group() -> None:
    asked = spec(scorers=[{"name": "numeric_match"}], judge=JUDGE, penalties=[GROUP_LENGTH])
    work = Work(0, item(), carried(Result(score=1.0, parts={"base": 1.0})))
    judged = advanced(asked, work, Result(score=8.0, parts={"spread": 0.0}, value={"rubric": "r"}))
    assert (judged.score, judged.next, judged.value) == (5.0, "reward", {"rubric": "r"})
    assert parts(judged) == {"base": 1.0, "judge": 8.0, "judge.spread": 0.0}


def test_a_failed_judge_fails_the_item_and_keeps_its_parts() -> None:
    asked = spec(scorers=[{"name": "numeric_match"}], judge=JUDGE)
    carry = carried(Result(score=1.0, parts={"base": 1.0}))
    failure = Result(error=ItemError("verdict_missing", "None."))
    assert join_judge(asked, carry, failure)[0] == {"base": 1.0}
    failed = advanced(asked, Work(0, item(), carry), failure)
    assert (failed.score, failed.status, parts(failed)) == (None, "failed", {"base": 1.0})


def test_interleaved_groups_have_their_own_medians() -> None:
    asked = spec(penalties=[GROUP_LENGTH])
    rows = [
        ("a", member(1, 100)),
        ("b", member(1, 10)),
        ("a", member(1, 140)),
        ("b", member(0, 10)),
        ("a", member(1, 40)),
    ]
    results = grouped(asked, *rows)
    # Group a: median 100; 140 deviates by 0.4, half way from 0.3 to 0.5; 40 by 0.6, beyond. Group b: median 10.
    assert [parts(each)["median_length"] for each in results] == [100, 10, 100, 10, 100]
    assert [parts(each)["group_length"] for each in results] == pytest.approx([0, 0, 0.5, 0, 1])
    assert [each.score for each in results] == pytest.approx([1, 1, 0, 0, -1])


def test_an_item_without_a_group_forms_its_own_group() -> None:
    results = grouped(spec(penalties=[GROUP_LENGTH]), (None, member(1, 5)), (None, member(1, 500)))
    assert [each.score for each in results] == [1.0, 1.0]


def test_failed_items_do_not_affect_the_median_and_keep_reason_and_penalty() -> None:
    asked = spec(penalties=[GROUP_LENGTH], group_statistics=True)
    lost = Result(
        error=ItemError("api_timeout", "Late."), timed_out=True, parts={"base": 1.0, "response_length": 1000.0}
    )
    results = grouped(asked, ("a", member(1, 10)), ("a", lost), ("a", member(0, 10)))
    assert [each.status for each in results] == ["ok", "timed_out", "ok"]
    assert results[1].error == ItemError("api_timeout", "Late.")
    assert parts(results[1]) == {"base": 1.0, "response_length": 1000.0, "median_length": 10.0, "group_length": 1.0}
    assert results[1].score is None
    assert parts(results[0])["group_mean"] == 0.5, "a failed item has no reward"


def test_a_group_of_failures_is_finished() -> None:
    asked = spec(penalties=[GROUP_LENGTH], group_statistics=True)
    lost = Result(error=ItemError("scorer_failed", "No."))
    late = Result(error=ItemError("api_timeout", "Late."), parts={"base": 1.0, "response_length": 7.0})
    first, second = grouped(asked, ("a", lost), ("a", late))
    assert (first.status, parts(first)) == ("failed", {})
    assert parts(second)["group_length"] == 0.0, "without a valid response the group has no median"


def test_a_median_of_0_gives_no_penalty() -> None:
    results = grouped(spec(penalties=[GROUP_LENGTH]), ("a", member(1, 0)), ("a", member(1, 0)), ("a", member(1, 9)))
    assert [each.score for each in results] == [1, 1, 1]


def test_group_statistics_are_computed_from_rewards() -> None:
    rows = [("a", member(1, 10)), ("a", member(0, 10)), ("b", member(1, 10))]
    results = grouped(spec(penalties=[GROUP_LENGTH], group_statistics=True), *rows)
    std = 0.5**0.5  # of 1 and 0, divided by n - 1
    assert parts(results[0])["group_mean"] == 0.5
    assert parts(results[0])["group_std"] == pytest.approx(std)
    assert parts(results[0])["advantage"] == pytest.approx(0.5 / (std + 1e-6))
    assert parts(results[1])["advantage"] == pytest.approx(-0.5 / (std + 1e-6))
    assert (parts(results[2])["group_std"], parts(results[2])["advantage"]) == (0.0, 0.0)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.floats(-10, 10),
        st.integers(0, 2000),
        st.sampled_from(["ok", "ok", "ok", "failed"]),
    ),
    min_size=1,
    max_size=24,
)


@given(ROWS, st.randoms())
def test_a_permutation_of_the_items_permutes_the_results(rows: list[Any], chance: Any) -> None:
    asked = spec(penalties=[GROUP_LENGTH], group_statistics=True)
    results = [
        (group, member(base, length) if status == "ok" else Result(error=ItemError("broken", "No.")))
        for group, base, length, status in rows
    ]
    order = list(range(len(rows)))
    chance.shuffle(order)
    straight = grouped(asked, *results)
    shuffled = grouped(asked, *(results[at] for at in order))
    assert shuffled == [straight[at] for at in order]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "`scorers` is empty: name at least one scorer, or a `judge`, or `penalties`"),
        ({"penalties": [{"name": "group_lenght"}]}, "did you mean 'group_length'?"),
        ({"penalties": [{"name": "group_length", "options": {"peak_ratio": 0.9}}]}, "`peak_ratio` must be less"),
        ({"penalties": [GROUP_LENGTH, GROUP_LENGTH]}, "'group_length' is listed twice"),
        ({"judge": {"profile": "main", "mode": "pairwise"}}, "pairwise compares two responses"),
        ({"scorers": [{"name": "numeric_match", "as": "base"}], "group_statistics": True}, "already has a part 'base'"),
        (
            {"scorers": [{"name": "repetition"}], "penalties": [{"name": "repetition"}]},
            "already has a part 'repetition'",
        ),
        ({"judge": {"profile": "main", "reward_coefficient": 1e10}}, "spec.judge.reward_coefficient"),
    ],
)
def test_an_invalid_reward_is_refused_with_its_path(fields: dict[str, Any], said: str) -> None:
    assert said in refused(**fields)


def test_an_unknown_tokenizer_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"spec\.tokenizer: unknown tokenizer 'gpt'"):
        KIND.check(spec(penalties=[GROUP_LENGTH], tokenizer="gpt"))


def test_plain_scorers_add_no_reward_parts() -> None:
    assert not spec(scorers=[{"name": "numeric_match"}]).is_reward
    assert [stage.name for stage in KIND.stages(spec(scorers=[{"name": "numeric_match"}]))] == ["score"]
    whole = spec(scorers=[{"name": "numeric_match"}], judge=JUDGE, penalties=[GROUP_LENGTH])
    assert [stage.name for stage in KIND.stages(whole)] == ["score", "judge", "reward"]
