"""Rollouts for tests, on a fleet whose workers the test runs step by step, or as a sample queue without workers."""

import json
from typing import Any
from uuid import uuid4

from tasks.jobs.model import Job
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.rollouts import Rollouts
from tasks.rollouts.sample_queue import Batch, Wish, bundles_of
from tests.support.fleet import Fleet, Hand

#: A rollout whose generation takes no time and gives four samples a prompt.
SIMULATED: dict[str, Any] = {"simulated": {}, "sampling": {"n": 4, "temperature": 1.0}, "train_batch_size": 8}


class Stand:
    """A rollout of a fleet, with short names for the calls that tests make."""

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
        """Return the indices of the prompts in a batch."""
        return [group["index"] for group in self.groups(batch)]

    def told(self, name: str) -> Any:
        return self.rollouts.statistics(self.id)[name]

    def work(self, *hands: Hand) -> None:
        self.fleet.work(*hands)
