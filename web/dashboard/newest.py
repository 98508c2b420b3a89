"""The newest jobs of the overview: a run of a benchmark is one of them, and those it submits are left to `/jobs`."""

import json
from typing import cast

from redis import Redis

from config import keys
from tasks.benchmarks.model import is_measured_with

#: Newest jobs that are looked at: a benchmark submits dozens of them.
LOOKED_AT = 200


class Newest:
    """What a job is never changes, so it is asked once of each."""

    def __init__(self) -> None:
        self._is_shown: dict[str, bool] = {}

    def read(self, state: Redis, number: int) -> list[str]:
        """So many of them, newest first."""
        ids = cast(list[str], state.zrevrange(keys.jobs(), 0, LOOKED_AT - 1))
        fresh = [job for job in ids if job not in self._is_shown]
        pipeline = state.pipeline(transaction=False)
        for job in fresh:
            pipeline.hmget(keys.job(job), ["kind", "metadata"])
        found = zip(fresh, pipeline.execute(), strict=True)
        known = self._is_shown | {
            job: not is_measured_with(kind or "", json.loads(metadata or "{}")) for job, (kind, metadata) in found
        }
        self._is_shown = {job: known[job] for job in ids}
        return [job for job in ids if known[job]][:number]
