"""Pure parts of rollouts: order of prompts, statistics, and validation of specs."""

from typing import Any

import pytest
from pydantic import ValidationError

from bench.baselines.ideal_async_training import Run, seconds
from tasks.jobs.state.layout import Layout
from tasks.jobs.state.prompt_loop import PromptLoop
from tasks.rollouts.metrics import Counts, freshness, metrics, processing_times, statistics
from tasks.rollouts.model import RolloutSpec

FIELDS = {
    "n": "4", "queued": "10", "max_queue_size": "40", "put": "32", "handed": "20", "dropped": "2", "stale": "5",
    "partial": "8", "max_partial_span": "2", "since": "12", "version": "3", "version_at": "90", "busy_s": "4",
    "busy_since": "98", "first_get_at": "60", "waited_s": "10", "max_staleness": "3", "held": "1", "pauses": "2",
}  # fmt: skip
BATCH = (
    '{"samples": 4, "age": 6, "age_max": 3, "age_min": 0, "seconds": 2.0, "seconds_max": 1.5, "old": 1, '
    '"versions": [0, 3]}'
)


def counts(**changed: Any) -> Counts:
    return Counts(**{"fields": FIELDS, "total": 12, "ok": 8, "failed": 1, "recent": [BATCH, BATCH], "times": ["1", "3"],
                     "sync": None, "now": 100.0} | changed)  # fmt: skip


def test_the_figures_have_the_names_that_trainers_log() -> None:
    names = {
        "fully_async/trainer/idle_ratio", "fully_async/rollouter/idle_ratio", "fully_async/rollouter/active_time",
        "fully_async/rollouter/version_time", "fully_async/count/total_generated_samples",
        "fully_async/count/stale_samples_processed", "fully_async/count/current_param_version",
        "fully_async/count/dropped_stale_samples", "fully_async/count/staleness_samples",
        "fully_async/partial/total_partial_num", "fully_async/partial/partial_ratio",
        "fully_async/partial/max_partial_span", "fully_async/processing_time/avg", "fully_async/processing_time/max",
        "fully_async/processing_time/min", "fully_async/processing_time/tp50", "fully_async/processing_time/tp95",
        "fully_async/processing_time/tp99", "fully_async/monitor/queue/mq_queue_size", "timing_s/param_sync",
        "freshness/avg_sample_age", "freshness/max_sample_age", "freshness/min_sample_age",
        "freshness/avg_sample_latency", "freshness/max_sample_latency", "freshness/stale_samples_ratio",
        "version_diversity",
    }  # fmt: skip
    figures = metrics(counts())
    assert figures.keys() - names == {"fully_async/monitor/queue/utilization"}
    assert names <= figures.keys()
    assert figures["fully_async/trainer/idle_ratio"] == 0.25, "10 of 40 s"
    assert figures["fully_async/rollouter/idle_ratio"] == pytest.approx(0.4), "6 of 10 s generating"
    assert figures["fully_async/partial/partial_ratio"] == 0.25
    assert figures["fully_async/monitor/queue/utilization"] == 0.25


def test_freshness_is_measured_in_versions_and_in_seconds() -> None:
    figures = freshness([{"samples": 3, "age": 3, "age_max": 2, "age_min": 0, "seconds": 6.0, "seconds_max": 4.0,
                          "old": 1, "versions": [1, 2]},
                         {"samples": 1, "age": 5, "age_max": 5, "age_min": 5, "seconds": 2.0, "seconds_max": 2.0,
                          "old": 1, "versions": [2]}])  # fmt: skip
    assert (figures["freshness/avg_sample_age"], figures["freshness/max_sample_age"]) == (2, 5)
    assert (figures["freshness/avg_sample_latency"], figures["freshness/max_sample_latency"]) == (2, 4)
    assert (figures["freshness/stale_samples_ratio"], figures["version_diversity"]) == (0.5, 2)


def test_statistics_of_an_empty_rollout_are_defined() -> None:
    empty = counts(fields={"n": "4", "max_queue_size": "40"}, total=0, ok=0, failed=0, recent=[], times=[])
    assert metrics(empty)["fully_async/trainer/idle_ratio"] == 0
    assert processing_times([])["fully_async/processing_time/tp99"] == 0
    told = statistics(counts())
    assert (told["is_paused"], told["pause_count"], told["generation_errors"], told["samples_under_way"]) == (
        True, 2, 1, 12,
    )  # fmt: skip


def test_each_epoch_has_every_prompt_once_in_an_order_set_by_its_seed() -> None:
    loop = PromptLoop(50, 7)
    epochs = [[loop.prompt(epoch * 50 + at) for at in range(50)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != list(range(50))
    assert [PromptLoop(50, 8).prompt(at) for at in range(50)] != epochs[0]
    assert [PromptLoop(3, None).prompt(at) for at in range(5)] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("layout", "text", "is_stored"),
    [
        (Layout(), "", False),
        (Layout("f"), '{"folder":"f"}', True),
        (Layout(trials=3), '{"trials":3}', False),
        (Layout(loop=PromptLoop(50, None)), '{"prompts":50}', False),
        (Layout("f", loop=PromptLoop(50, 0)), '{"folder":"f","prompts":50,"seed":0}', False),
    ],
)
def test_a_layout_survives_serialization(layout: Layout, text: str, is_stored: bool) -> None:
    assert str(layout) == text
    assert Layout.parse(text) == layout
    assert (layout.is_stored, layout.folder_of("job")) == (is_stored, "f" if is_stored else "job")
    assert layout.of_prompts == Layout(layout.folder, layout.trials)


def test_staleness_is_parsed_for_each_rule() -> None:
    assert RolloutSpec(staleness_threshold=3).staleness == 3
    assert RolloutSpec(max_staleness=2).staleness == 2
    share = RolloutSpec(rule="proportion", staleness_threshold=0.5)
    assert (share.staleness, share.bounds()["threshold"]) == (None, 0.5)
    assert RolloutSpec(rule="proportion", staleness_threshold=0.5, max_staleness=4).staleness == 4
    for wrong in ({"staleness_threshold": 0.5}, {"rule": "proportion"}, {"max_staleness": 1, "staleness_threshold": 2}):
        with pytest.raises(ValidationError):
            RolloutSpec.model_validate(wrong)


def test_samples_of_one_prompt_differ_from_epoch_to_epoch() -> None:
    spec = RolloutSpec(model="m", seed=1)
    assert len({spec.inference(index).sampling.seed for index in range(1000)}) == 1000
    assert spec.inference(5) == spec.inference(5)


@pytest.mark.parametrize(("staleness", "expected"), [(0, 9.0), (1, 4.5), (2, 4.0), (8, 4.0)])
def test_the_possible_throughput_is_computed_from_the_times(staleness: int, expected: float) -> None:
    """Generation takes 4, reward 2, training 3: 9 in sequence; then overlapped as far as the staleness allows, until
    the device is never idle."""
    run = Run(200, 4, 4, 4.0, 3.0, lambda _: 2.0, staleness)
    assert seconds(run) / 200 == pytest.approx(expected, rel=0.05)
