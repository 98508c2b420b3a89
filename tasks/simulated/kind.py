"""Job kind `simulated`: an engine that sleeps instead of computing; everything else, including crashes, is real."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tasks.jobs.kind import Installation, Kind
from tasks.jobs.model import StageLimits
from tasks.jobs.stage import Stage
from tasks.simulated.model import SimulatedItem, SimulatedSpec
from tasks.simulated.stages import Engine, GroupStage, RunningStage, SleepStage


class Simulated(Kind[SimulatedSpec, SimulatedItem]):
    name = "simulated"
    spec_model = SimulatedSpec
    item_model = SimulatedItem

    def __init__(self, journal: Path | None = None, slowdown: float = 1.0) -> None:
        """`journal`: a file to which a line is appended per computed item, so that tests can count computations."""
        self._engine = Engine(journal, slowdown)

    @classmethod
    def create(cls, installation: Installation) -> Self:
        settings = installation.settings
        return cls(settings.simulated_journal, settings.simulated_slowdown)

    def stages(self, spec: SimulatedSpec) -> Sequence[Stage[SimulatedItem]]:
        limits = StageLimits(
            batch_items=spec.batch_items,
            cost_s=max(spec.cost_s + spec.batch_cost_s / spec.batch_items, 1e-5),
            timeout_s=spec.timeout_s,
        )
        following = [*(each.name for each in spec.stages[1:]), ""]
        stages: list[Stage[SimulatedItem]] = []
        for each, then in zip(spec.stages, following, strict=True):
            sort = GroupStage if each.grouped else RunningStage if spec.streams else SleepStage
            stages.append(sort(self._engine, spec, each, limits, then))
        return stages

    def labels(self, spec: SimulatedSpec) -> Mapping[str, str]:
        return {"model": f"simulated-{spec.seed}"}

    def trials(self, spec: SimulatedSpec) -> int:
        return spec.trials
