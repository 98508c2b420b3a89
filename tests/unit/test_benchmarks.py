"""Benchmarks without a running system: spread, regressions, plans, reports and schedules."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from celery.schedules import crontab

from config.schedule import parse_schedule
from config.settings import Settings
from tasks.app import create_celery
from tasks.deployment_benchmarks.catalogue import BENCHMARKS, SCENARIOS, find, plan
from tasks.deployment_benchmarks.model import BenchmarkItem, BenchmarkSpec, Measured, Outcome, RunOptions
from tasks.deployment_benchmarks.report import Report, as_markdown, summary
from tasks.deployment_benchmarks.scenarios.scenario import Capabilities, slot_counts
from tasks.deployment_benchmarks.simulated_trainer import MINIMAL, PERFORMANCE, Training
from tasks.deployment_benchmarks.summary import CaseOfRun, summarize
from tasks.errors import UnknownBenchmark
from tasks.measurement.machine import Machine, describe, gpus_of
from tasks.measurement.noise import band, has_regressed
from tasks.measurement.percentiles import percentiles
from tasks.measurement.spread import Spread, format_number, spread_of
from tasks.worker_registry import Gpu, Worker

CAPABILITIES = Capabilities(slots=4, policy_servers=2, models=("smollm2",), profiles=("development",))
WORKER = Worker("gpu.a.0", "device", "a", "box", 1, "x", "y", queues=("gpu.a.0",))
MACHINE = Machine("a processor", 2, 8.0, "Linux", ("gpu.node1.0",), (), {"python": "3.11"}, "abc")


# --- spread and percentiles ---


def test_a_ratio_has_the_widest_range_that_the_ranges_of_its_sides_allow() -> None:
    assert Spread(4.0, 3.0, 6.0).over(Spread(2.0, 1.0, 3.0)) == Spread(2.0, 1.0, 6.0)
    assert Spread(4.0, 3.0, 6.0).over(2.0) == Spread(2.0, 1.5, 3.0)


def test_a_spread_is_printed_as_its_median_with_its_range() -> None:
    assert str(spread_of([3.0, 1.0, 2.0])) == "2 (1 to 3)"
    assert str(spread_of([1234.5])) == "1,234"
    assert [format_number(value) for value in (0.12345, 12.345, -1500.0)] == ["0.123", "12.3", "-1,500"]


def test_percentiles_are_measured_values() -> None:
    assert percentiles([4.0, 1.0, 3.0, 2.0], 0.5, 0.95) == [3.0, 4.0]
    assert percentiles([7.0], 0.5, 0.99) == [7.0, 7.0]


# --- noise ---


def test_a_figure_with_few_earlier_runs_has_no_band() -> None:
    assert band([100.0, 101.0, 99.0, 100.0]) is None
    assert not has_regressed(Spread(1.5, 1.0, 2.0), None, "higher")


def test_the_width_of_a_band_follows_the_noise_of_earlier_runs() -> None:
    quiet, loud = band([100, 100.1, 99.9, 100, 100]), band([100, 120, 80, 110, 90])
    assert quiet
    assert loud
    assert (quiet.low, quiet.high) == (95, 105)  # never narrower than five percent
    assert loud.low < 60
    assert loud.high > 140


def test_a_single_outlier_does_not_widen_the_band() -> None:
    found = band([100, 101, 99, 100, 100, 20])
    assert found
    assert found.low > 90


def test_only_the_latest_runs_count() -> None:
    found = band([1.0] * 20 + [100.0] * 10)
    assert found
    assert found.usual == 100


@pytest.mark.parametrize("earlier", [5, 7, 10])
@pytest.mark.parametrize("within", [0.01, 0.1])
def test_an_unchanged_figure_is_flagged_in_less_than_six_runs_of_1000(earlier: int, within: float) -> None:
    chance = random.Random(7)

    def run() -> list[float]:
        """Return sorted repetitions. Runs differ by a tenth, as on a shared machine."""
        own = chance.gauss(100, 10)
        return sorted(own * chance.gauss(1, within) for _ in range(3))

    flagged = 0
    for _ in range(3000):
        usual = band([run()[1] for _ in range(earlier)])
        least, middle, most = run()
        flagged += has_regressed(Spread(middle, least, most), usual, "lower")
    assert flagged < 3000 * 0.006


@pytest.mark.parametrize(
    ("least", "most", "better", "expected"),
    [
        (80, 90, "higher", True),
        (80, 96, "higher", False),  # the best repetition lies inside the band
        (110, 120, "higher", False),
        (110, 120, "lower", True),
        (104, 120, "lower", False),
        (80, 90, "neither", False),
    ],
)
def test_a_figure_has_regressed_if_even_its_best_repetition_is_outside_the_band(
    least: float, most: float, better: Any, expected: bool
) -> None:
    assert has_regressed(Spread((least + most) / 2, least, most), band([100] * 5), better) is expected


# --- plans ---


def test_every_case_is_measured_once_before_the_second_repetition() -> None:
    made = plan(find("quick"), CAPABILITIES, RunOptions())
    names = [(item.scenario, item.case) for item in made.items]
    cases = names[: len(set(names))]
    assert names == cases * 3
    assert {scenario for scenario, _ in cases} == set(SCENARIOS)
    assert made.left_out == ()


def test_unavailable_scenarios_are_left_out_with_the_reason() -> None:
    made = plan(find("quick"), Capabilities(slots=1, policy_servers=0, models=(), profiles=()), RunOptions())
    reasons = " ".join(made.left_out)
    assert "policy_scoring: no policy server is connected" in reasons
    assert "unknown API profile 'development'" in reasons
    assert "async_division: there is only 1 device slot" in reasons
    assert "rule_scoring" in {item.scenario for item in made.items}


def test_the_parameters_of_every_case_are_valid_for_its_scenario() -> None:
    for name in BENCHMARKS:
        for item in plan(find(name), CAPABILITIES, RunOptions(repetitions=1)).items:
            SCENARIOS[item.scenario].parameters.model_validate(item.parameters)


def test_an_unknown_benchmark_is_refused_with_the_known_names() -> None:
    with pytest.raises(
        UnknownBenchmark, match="Unknown benchmark 'slow'; choose from quick, full, async, judge_throughput"
    ):
        find("slow")


def test_scenarios_measure_powers_of_two_and_all_slots() -> None:
    assert [slot_counts(number) for number in (1, 2, 3, 6, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_the_declared_configurations_run_unchanged() -> None:
    items = {
        item.case: item.parameters for item in plan(find("async_configurations"), CAPABILITIES, RunOptions()).items
    }
    assert Training.model_validate(items["minimal"]).configuration == MINIMAL
    assert Training.model_validate(items["performance"]).configuration == PERFORMANCE


def test_a_division_uses_every_device_for_rollout_or_training() -> None:
    for item in plan(find("async_division"), CAPABILITIES, RunOptions()).items:
        configuration = Training.model_validate(item.parameters).configuration
        assert configuration.rollout_devices + configuration.trainer_devices == CAPABILITIES.slots


# --- figures and reports ---


def outcome(value: float, repetition: int, disturbed: str = "", error: str = "") -> Outcome:
    item = BenchmarkItem(
        id=f"rule_scoring/numeric_match/{repetition}",
        scenario="rule_scoring",
        case="numeric_match",
        repetition=repetition,
        parameters={"items": 10, "scorer": "numeric_match"},
    )
    return Outcome(item, None if error else Measured({"items_s": value}, "rules (real)", disturbed=disturbed), error)


def summarized(*outcomes: Outcome, earlier: tuple[float, ...] = ()) -> CaseOfRun:
    return summarize(outcomes, "machine", lambda _figure, _basis: earlier)[0]


def test_a_figure_is_the_median_of_its_repetitions_with_their_spread() -> None:
    (figure,) = summarized(outcome(10, 0), outcome(30, 1), outcome(20, 2)).figures
    assert (figure.figure, figure.value, figure.least, figure.most) == (
        "rule_scoring/numeric_match/items_s",
        20,
        10,
        30,
    )


def test_a_disturbed_measurement_counts_only_if_every_measurement_was_disturbed() -> None:
    (quiet,) = summarized(outcome(10, 0, disturbed="1 other job ran"), outcome(20, 1)).figures
    assert (quiet.value, quiet.is_disturbed) == (20, False)
    (disturbed,) = summarized(outcome(10, 0, disturbed="1 other job ran"), earlier=(100.0,) * 5).figures
    assert (disturbed.is_disturbed, disturbed.is_regression) == (True, False)


def test_a_disturbed_figure_is_marked_in_the_summary() -> None:
    outcomes = [outcome(50, 0, disturbed="1 other job ran")]
    report = Report(BenchmarkSpec(run="a" * 32, name="quick"), MACHINE, [summarized(*outcomes)], outcomes, 0.0, 60.0)
    assert "items_s: 50 items/s (50 to 50)  DISTURBED" in "\n".join(summary(report))


def test_a_figure_below_its_band_is_flagged_in_the_report_and_the_summary() -> None:
    outcomes = [outcome(50, 0), outcome(52, 1)]
    case = summarized(*outcomes, earlier=(100.0,) * 5)
    report = Report(BenchmarkSpec(run="a" * 32, name="rule_scoring"), MACHINE, [case], outcomes, 0.0, 60.0)
    assert "items_s: 51 items/s (50 to 52)  REGRESSION" in "\n".join(summary(report))
    assert "| rule_scoring/numeric_match/items_s | 51 items/s (50 to 52) | 100 | 95 to 105 |" in as_markdown(report, [])


def test_a_gpu_of_another_product_makes_another_machine() -> None:
    def gpus(*names: str) -> tuple[str, ...]:
        devices = [Gpu(str(n), f"GPU-{n}", 0.5, 0, 16384, name) for n, name in enumerate(names)]
        shared = [devices, devices[:1]]  # two slots may share a GPU
        return gpus_of([replace(WORKER, devices=("0",), gpus=tuple(each)) for each in shared])

    assert gpus("A100", "A100") == ("A100 (16384 MB)", "A100 (16384 MB)")
    bases = {describe(["gpu.a.0"], "7.0", gpus(name)).basis for name in ("A100", "H100")}
    assert len(bases) == 2
    assert gpus_of([replace(WORKER, devices=("0",))]) == ("0",)


def test_a_report_names_machine_versions_engine_errors_and_parameters() -> None:
    outcomes = [outcome(50, 0), outcome(0, 1, error="The judge was away.")]
    left_out = ("policy_scoring: no policy server is connected",)
    spec = BenchmarkSpec(run="a" * 32, name="quick", left_out=left_out)
    text = as_markdown(Report(spec, MACHINE, [summarized(*outcomes)], outcomes, 0.0, 60.0), ["rule_scoring.png"])
    for expected in (
        "a processor, 2 cores",
        "python 3.11",
        "| commit | abc |",
        "engine: rules (real)",
        "numeric_match: failed: The judge was away.",
        "no policy server is connected",
        "![rule_scoring]",
        "No comparison yet",
        '"scorer": "numeric_match"',
    ):
        assert expected in text


# --- schedules ---


def test_a_schedule_is_parsed_into_names_and_crontabs() -> None:
    found = parse_schedule("quick=0 3 * * *; full = 30 4 * * sun ;")
    assert [(each.name, each.fields) for each in found] == [("quick", "0 3 * * *"), ("full", "30 4 * * sun")]
    assert parse_schedule("") == []


@pytest.mark.parametrize("text", ["quick", "quick=0 3 * *", "quick=0 25 * * *", "=0 3 * * *", "quick=x 3 * * *"])
def test_an_invalid_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be name=|is not a crontab"):
        parse_schedule(text)


def test_the_next_due_time_follows_the_crontab() -> None:
    (nightly,) = parse_schedule("quick=30 3 * * *")
    noon = datetime(2026, 11, 18, 12, 0, tzinfo=UTC).timestamp()
    assert datetime.fromtimestamp(nightly.next_at(noon), UTC) == datetime(2026, 11, 19, 3, 30, tzinfo=UTC)
    (weekly,) = parse_schedule("full=0 4 * * sun")
    assert datetime.fromtimestamp(weekly.next_at(noon), UTC) == datetime(2026, 11, 22, 4, 0, tzinfo=UTC)


def test_a_crontab_for_the_leap_day_is_due_in_the_next_leap_year() -> None:
    (rare,) = parse_schedule("full=30 4 29 2 *")
    summer = datetime(2026, 6, 1, tzinfo=UTC).timestamp()
    assert datetime.fromtimestamp(rare.next_at(summer), UTC) == datetime(2028, 2, 29, 4, 30, tzinfo=UTC)
    with pytest.raises(ValueError, match="never due"):
        parse_schedule("full=30 4 30 2 *")


@pytest.mark.parametrize(("hour", "is_begun"), [(3, True), (10, False)])
def test_a_run_that_was_due_while_beat_was_down_is_not_started_hours_later(hour: int, is_begun: bool) -> None:
    app = create_celery(Settings())
    back = datetime(2026, 11, 18, hour, 40, tzinfo=UTC)
    nightly = crontab(minute="0", hour="3", nowfun=lambda: back, app=app)
    assert nightly.is_due(datetime(2026, 11, 17, 3, 0, tzinfo=UTC)).is_due is is_begun


def test_every_beat_computes_the_same_due_time() -> None:
    (yearly,) = parse_schedule("quick=0 0 1 1 *")
    year = datetime.now(UTC).year
    assert yearly.slot() == f"{year}-01-01T00:00Z"
