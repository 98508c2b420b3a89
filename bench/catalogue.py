"""Catalogue of the parts of `python -m bench`: title, command and time limit of each."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    minutes: float
    """Time limit: several times the duration on two idle cores. A part that exceeds it is stopped."""
    argv: Sequence[str] = ()
    """Arguments of the interpreter, for parts other than `python -m bench.parts.<name>`. `{folder}` is replaced by the
    results folder."""

    in_brief: Sequence[str] = ()
    """Additional arguments for a smoke test (`--brief`)."""

    def command(self, name: str, folder: Path, is_brief: bool) -> list[str]:
        argv = [*(self.argv or ("-m", f"bench.parts.{name}")), *(self.in_brief if is_brief else ())]
        return [sys.executable, *(each.format(folder=folder) for each in argv)]


#: Parts, in the order of the run and of the page docs/performance.md.
PARTS = {
    "core": Part("The job core", 12),
    "large": Part("A million items", 12),
    "memory": Part("Memory of Redis", 10),
    "http": Part("The HTTP API", 10),
    "failover": Part("Failover of Redis", 60, in_brief=("--trials", "1")),
    "dashboard": Part("The dashboard", 8),
    "judging": Part("Judging", 10),
    "rewards": Part("Rewards for a trainer", 12),
    "rollouts": Part("Rollouts", 12),
    "engines": Part("Engines", 25),
    "weights": Part("New weights", 6),
    "inference": Part("Inference jobs", 15),
    "policies": Part("Policy servers", 15),
    "peers": Part("Peers", 45, ("-m", "bench.peers", "--output", "{folder}/peers")),
    "benchmark": Part(
        "The system's own benchmark",
        25,
        ("-m", "workers.up", "--run", "--", "assay", "benchmark", "quick", "--output", "{folder}/quick"),
        ("--repetitions", "1"),
    ),
}
