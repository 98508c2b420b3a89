"""Rollouts as tests use them: on a fleet whose workers work when told to, or as a queue alone."""

import json
from typing import Any
from uuid import uuid4

from tasks.jobs.model import Job
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.queue import Batch, Wish, bundles_of
from tasks.rollouts.rollouts import Rollouts
from tests.fleet import Fleet, Hand

#: One that generates at once, four samples a prompt.
SIMULATED: dict[str, Any] = {"simulated": {}, "sampling": {"n": 4, "temperature": 1.0}, "train_batch_size": 8}


class Stand:
    """One rollout of a fleet."""

    def __init__(self, fleet: Fleet, prompts: int = 0, **spec: Any) -> None:
        self.fleet = fleet
        self.rollouts = Rollouts(fleet.core, fleet.celery)
        lines = [json.dumps({"id": f"p{n}", "prompt": f"prompt {n}"}).encode() for n in range(prompts)]
        fleet.core.dispatcher.forget_fleet()
        self.id = self.rollouts.create(RolloutSpec.model_validate(spec), lines, {})

    @property
    def job(self) -> Job:
        return self.fleet.job(self.id)

    def put(self, *samples: Any, version: int = 0, group: bool = False, token: str = "") -> bool:
        bundles = bundles_of(samples, version, {"group_id": None}, group)
        return self.rollouts.queue.put(self.id, bundles, token or uuid4().hex)[0]

    def get(self, samples: int = 1, **wish: Any) -> Batch:
        return self.rollouts.get(self.id, Wish(samples, **wish))

    def groups(self, batch: Batch) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.rollouts.queue.texts(self.id, batch)]

    def samples(self, batch: Batch) -> list[Any]:
        return [sample for group in self.groups(batch) for sample in group["samples"]]

    def indices(self, batch: Batch) -> list[int]:
        """The prompts of a batch."""
        return [group["index"] for group in self.groups(batch)]

    def told(self, name: str) -> Any:
        return self.rollouts.statistics(self.id)[name]

    def work(self, *hands: Hand) -> None:
        self.fleet.work(*hands)
