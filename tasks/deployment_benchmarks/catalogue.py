"""Registry of the benchmarks: scenarios by name, and named sets of scenarios."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.deployment_benchmarks.model import BenchmarkItem, RunOptions, Size
from tasks.deployment_benchmarks.scenarios.inference import InferenceShards
from tasks.deployment_benchmarks.scenarios.judging import CachedJudge, JudgeThroughput
from tasks.deployment_benchmarks.scenarios.policies import PolicyScoring
from tasks.deployment_benchmarks.scenarios.rollouts import (
    Configurations,
    Division,
    GenerationInterval,
    PauseResume,
    QueueSize,
    Staleness,
)
from tasks.deployment_benchmarks.scenarios.scenario import Capabilities, Scenario, ScenarioUnavailable
from tasks.deployment_benchmarks.scenarios.scoring import RuleScoring
from tasks.errors import UnknownBenchmark

SCENARIOS: dict[str, Scenario[Any]] = {
    each.name: each
    for each in (
        JudgeThroughput(),
        CachedJudge(),
        RuleScoring(),
        InferenceShards(),
        PolicyScoring(),
        Staleness(),
        QueueSize(),
        GenerationInterval(),
        Division(),
        PauseResume(),
        Configurations(),
    )
}


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named set of scenarios, with its default size and number of repetitions."""

    name: str
    description: str
    scenarios: tuple[str, ...]
    size: Size
    repetitions: int


ASYNC = tuple(name for name in SCENARIOS if name.startswith("async_"))
SETS = (
    Benchmark("quick", "Every scenario, small: five to ten minutes.", tuple(SCENARIOS), "quick", 3),
    Benchmark("full", "Every scenario, large: half an hour to an hour.", tuple(SCENARIOS), "full", 5),
    Benchmark(
        "async", "Sensitivity of asynchronous training to its settings: twenty to forty minutes.", ASYNC, "full", 3
    ),
)
BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in SETS} | {
    name: Benchmark(name, scenario.description, (name,), "quick", 3) for name, scenario in SCENARIOS.items()
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Measurements of a run, in order."""

    items: Sequence[BenchmarkItem]
    left_out: tuple[str, ...]
    """Scenarios that this deployment cannot run, with the reason."""


def find(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise UnknownBenchmark(f"Unknown benchmark {name[:64]!r}; choose from {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def plan(benchmark: Benchmark, capabilities: Capabilities, options: RunOptions) -> Plan:
    """Plan each case once, then each case again, so that other load on the machine affects every case equally."""
    size = options.size or benchmark.size
    cases, left_out = [], []
    for name in benchmark.scenarios:
        try:
            cases += [(name, case) for case in SCENARIOS[name].cases(capabilities, size, options)]
        except ScenarioUnavailable as reason:
            left_out.append(f"{name}: {reason}")
    items = [
        BenchmarkItem(
            id=f"{name}/{case.name}/{repetition}",
            scenario=name,
            case=case.name,
            repetition=repetition,
            parameters=dict(case.parameters),
        )
        for repetition in range(options.repetitions or benchmark.repetitions)
        for name, case in cases
    ]
    return Plan(items, tuple(left_out))
