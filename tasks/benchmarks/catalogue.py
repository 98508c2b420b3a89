"""The scenarios by name, and the sets that they are run in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.benchmarks.model import BenchmarkItem, RunOptions, Size
from tasks.benchmarks.scenario import NotHere, Place, Scenario
from tasks.benchmarks.scenarios.inference import InferenceShards
from tasks.benchmarks.scenarios.judging import CachedJudge, JudgeThroughput
from tasks.benchmarks.scenarios.policies import PolicyScoring
from tasks.benchmarks.scenarios.rollouts import (
    Configurations,
    Division,
    GenerationInterval,
    PauseResume,
    QueueSize,
    Staleness,
)
from tasks.benchmarks.scenarios.scoring import RuleScoring
from tasks.errors import UnknownBenchmark

SCENARIOS: dict[str, Scenario[Any]] = {
    each.name: each
    for each in (
        JudgeThroughput(), CachedJudge(), RuleScoring(), InferenceShards(), PolicyScoring(), Staleness(), QueueSize(),
        GenerationInterval(), Division(), PauseResume(), Configurations(),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What can be run under one name."""

    name: str
    description: str
    scenarios: tuple[str, ...]
    size: Size
    repetitions: int


ASYNC = tuple(name for name in SCENARIOS if name.startswith("async_"))
SETS = (
    Benchmark("quick", "Every scenario, small: five to ten minutes.", tuple(SCENARIOS), "quick", 3),
    Benchmark("full", "Every scenario, large: half an hour to an hour.", tuple(SCENARIOS), "full", 5),
    Benchmark("async", "What changes the speed of asynchronous training: twenty to forty minutes.", ASYNC, "full", 3),
)
BENCHMARKS: dict[str, Benchmark] = {each.name: each for each in SETS} | {
    name: Benchmark(name, scenario.description, (name,), "quick", 3) for name, scenario in SCENARIOS.items()
}


@dataclass(frozen=True, slots=True)
class Plan:
    items: Sequence[BenchmarkItem]
    left_out: tuple[str, ...]
    """Scenarios that this system cannot run, with the reason."""


def find(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        raise UnknownBenchmark(f"There is no benchmark {name[:64]!r}; there are {', '.join(BENCHMARKS)}.")
    return BENCHMARKS[name]


def plan(benchmark: Benchmark, place: Place, options: RunOptions) -> Plan:
    """Every case once, then every case again: what else the machine does then meets all of them."""
    size = options.size or benchmark.size
    cases, left_out = [], []
    for name in benchmark.scenarios:
        try:
            cases += [(name, case) for case in SCENARIOS[name].cases(place, size, options)]
        except NotHere as reason:
            left_out.append(f"{name}: {reason}")
    items = [
        BenchmarkItem(
            id=f"{name}/{case.name}/{repetition}", scenario=name, case=case.name, repetition=repetition,
            parameters=dict(case.parameters),
        )
        for repetition in range(options.repetitions or benchmark.repetitions)
        for name, case in cases
    ]  # fmt: skip
    return Plan(items, tuple(left_out))
