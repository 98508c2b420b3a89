"""The parts of `python -m bench`: what each measures, the program that does, and how long it may take."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    title: str
    minutes: float
    """After which it is ended: several times what it takes on two idle cores."""
    argv: Sequence[str] = ()
    """If it is no program `python -m bench.<name>`. `{folder}` stands for the folder of the results."""

    in_brief: Sequence[str] = ()
    """Arguments that make it small."""

    def command(self, name: str, folder: Path, is_brief: bool) -> list[str]:
        argv = [*(self.argv or ("-m", f"bench.{name}")), *(self.in_brief if is_brief else ())]
        return [sys.executable, *(each.format(folder=folder) for each in argv)]


#: In the order in which they run and stand on the page.
PARTS = {
    "core": Part("The job core", 12),
    "large": Part("A million items", 12),
    "http": Part("The HTTP API", 10),
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
