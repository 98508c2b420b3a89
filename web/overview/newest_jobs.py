"""The newest jobs of the overview. A benchmark run is listed as a single job; `/jobs` lists the jobs that it
submits."""

import json
from typing import cast

from redis import Redis

from config import keys
from tasks.deployment_benchmarks.model import is_measured_with

#: Number of the newest jobs that are read: a benchmark submits dozens of jobs.
SCANNED = 200


class NewestJobs:
    """Reader of the newest jobs. Kind and metadata of a job never change, so they are read a single time and cached."""

    def __init__(self) -> None:
        self._is_shown: dict[str, bool] = {}

    def read(self, state: Redis, number: int) -> list[str]:
        """Return the ids of up to `number` jobs, newest first."""
        ids = cast(list[str], state.zrevrange(keys.jobs(), 0, SCANNED - 1))
        fresh = [job for job in ids if job not in self._is_shown]
        pipeline = state.pipeline(transaction=False)
        for job in fresh:
            pipeline.hget(keys.job(job), "kind")
            pipeline.hget(keys.job_definition(job), "metadata")
        replies = pipeline.execute()
        known = self._is_shown | {
            job: not is_measured_with(kind or "", json.loads(metadata or "{}"))
            for job, kind, metadata in zip(fresh, replies[::2], replies[1::2], strict=True)
        }
        self._is_shown = {job: known[job] for job in ids}
        return [job for job in ids if known[job]][:number]
