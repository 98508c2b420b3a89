"""Calibration of a judge: figures checked against values calculated by hand."""

from typing import Any

import pytest

from tasks.judging.calibration import Judged, categories, collect, kappa, report, spearman
from tasks.judging.model import JudgeItem, JudgeSpec


def spec(**fields: Any) -> JudgeSpec:
    return JudgeSpec.model_validate({"profile": "main", **fields})


def judged(pairs: list[tuple[float | None, float | None]]) -> list[Judged]:
    return [Judged(score, label) for score, label in pairs]


def test_a_judge_equal_to_the_labels_agrees_fully() -> None:
    found = report(judged([(1, 1), (5, 5), (9, 9)]), categories(spec()))
    assert (found["n"], found["agreement"], found["kappa"], found["weighted_kappa"]) == (3, 1.0, 1.0, 1.0)
    assert (found["pearson"], found["spearman"], found["mean_error"]) == (pytest.approx(1), pytest.approx(1), 0)


def test_kappa_corrects_for_chance_agreement() -> None:
    # Passed by both 20, by the judge only 5, by people only 10, by neither 15: agreement 0.7, by chance 0.5.
    ratings = [(1.0, 1.0)] * 20 + [(1.0, 0.0)] * 5 + [(0.0, 1.0)] * 10 + [(0.0, 0.0)] * 15
    assert kappa(ratings) == pytest.approx(0.4)
    assert kappa(ratings, weighted=True) == pytest.approx(0.4)


def test_weighted_kappa_penalizes_near_misses_less() -> None:
    near, far = [(1.0, 2.0), (2.0, 2.0), (3.0, 3.0)], [(1.0, 3.0), (2.0, 2.0), (3.0, 3.0)]
    assert kappa(near) == pytest.approx(0.5)
    assert kappa(near, weighted=True) == pytest.approx(2 / 3)
    assert kappa(far, weighted=True) == pytest.approx(0.0)


def test_equal_values_share_a_rank() -> None:
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)


@pytest.mark.parametrize("pairs", [[], [(5.0, 5.0)], [(5.0, 5.0), (5.0, 5.0)], [(None, 5.0)], [(5.0, None)]])
def test_an_undefined_figure_is_none(pairs: list[tuple[float | None, float | None]]) -> None:
    found = report(judged(pairs), categories(spec()))
    assert found["kappa"] is found["pearson"] is found["spearman"] is found["position"]["first_wins"] is None


def test_items_without_score_or_label_are_counted_and_excluded() -> None:
    found = report(judged([(8, 8), (None, 3), (4, None)]))
    assert (found["n"], found["without_score"], found["without_label"]) == (1, 1, 1)


def test_a_constant_has_no_correlation_despite_rounding() -> None:
    found = report(judged([(0.1, 0.1), (0.1, 0.7), (0.1, 0.2)]))
    assert found["pearson"] is found["spearman"] is None


def test_off_scale_labels_and_pending_items_are_counted_separately() -> None:
    item = {"response": "x"}
    labels: list[tuple[Any, Any]] = [(3, outcome(5)), (30, outcome(5)), (None, outcome(5)), (4, None)]
    found = report(
        collect(spec(), [(JudgeItem.model_validate(item | {"label": label}), each) for label, each in labels])
    )
    assert (found["n"], found["off_scale"], found["without_label"], found["pending"]) == (1, 1, 1, 1)
    assert found["without_score"] == 0


def test_too_many_distinct_labels_give_no_agreement() -> None:
    found = report(judged([(n / 1000, n / 1000 + 0.0001) for n in range(500)]), categories(spec(scale=[0.5, 1.0])))
    assert (found["n"], found["agreement"], found["kappa"]) == (500, None, None)
    assert found["pearson"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"scale": [1, 3]}, [1, 2, 3]),
        ({"scale": [1, 3], "normalize": True}, [0, 0.5, 1]),
        ({"mode": "pass_fail"}, [0, 1]),
        ({"mode": "pairwise"}, [0, 0.5, 1]),
        ({"scale": [0.5, 1.0]}, None),
    ],
)
def test_scores_and_labels_are_rounded_to_the_steps_of_the_scale(fields: dict[str, Any], steps: Any) -> None:
    assert categories(spec(**fields)) == steps


def test_length_bias_is_detected() -> None:
    items = [Judged(5.0 + length / 100, 5.0, length) for length in (10, 50, 90, 200)]
    assert report(items)["length"] == {"with_score": pytest.approx(1.0), "with_error": pytest.approx(1.0)}


def outcome(score: float | None, agreement: float = 1.0, *verdicts: float) -> dict[str, Any]:
    if score is None:
        return {"status": "failed", "score": 0.0, "value": None, "parts": None}
    rows = [{"verdict": verdict} for verdict in verdicts]
    return {"status": "ok", "score": score, "parts": {"order_agreement": agreement}, "value": {"verdicts": rows}}


def test_position_bias_is_detected() -> None:
    asked = spec(mode="pairwise")
    item = JudgeItem.model_validate({"response": "longer", "rival": "short", "label": "response"})
    outcomes = [outcome(0.5, 0.0, 1.0, 1.0), outcome(1.0, 1.0, 1.0, 0.0), outcome(0.5, 1.0, 0.5, 0.5)]
    found = report(collect(asked, [(item, each) for each in outcomes]), categories(asked))
    assert found["position"] == {"first_wins": 0.75, "verdicts": 4, "orders_disagree": pytest.approx(1 / 3)}
    assert found["agreement"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("fields", "label", "expected"),
    [
        ({}, 7, 7.0),
        ({}, 11, None),
        ({}, True, None),
        ({}, "good", None),
        ({"normalize": True}, 10, 1.0),
        ({"mode": "pass_fail"}, True, 1.0),
        ({"mode": "pass_fail"}, "fail", 0.0),
        ({"mode": "pairwise"}, "rival", 0.0),
        ({"mode": "pairwise"}, "tie", 0.5),
    ],
)
def test_a_label_is_converted_to_the_scale_of_the_scores(
    fields: dict[str, Any], label: Any, expected: float | None
) -> None:
    item = JudgeItem.model_validate({"response": "x", "rival": "y", "label": label})
    (found,) = collect(spec(**fields), [(item, outcome(None))])
    assert (found.score, found.label) == (None, expected)
