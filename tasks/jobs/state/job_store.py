"""Read access to jobs: their records as clients see them, their stages and the groups of their items.

State changes are not covered: they belong to the ledger.
"""

import json
from collections.abc import Sequence
from typing import Any, cast

from redis import Redis
from redis.client import Pipeline

from config import keys
from tasks.errors import UnknownJob
from tasks.jobs.model import Job
from tasks.jobs.state.layout import Layout
from tasks.jobs.state.ledger import expand
from tasks.jobs.state.ledger_format import GROUP_DIGITS, PAGE_ITEMS
from tasks.jobs.states import ACTIVE
from tasks.providers.usage import as_usage

#: Number of items whose groups are read in one round trip.
PAGE = 1000


class JobStore:
    def __init__(self, state: Redis) -> None:
        self._state = state

    def states(self, jobs: Sequence[str]) -> list[str | None]:
        pipeline: Pipeline = self._state.pipeline(transaction=False)
        for job in jobs:
            pipeline.hget(keys.job(job), "state")
        return list(pipeline.execute())

    def job(self, job_id: str) -> Job:
        return self.jobs([job_id])[0]

    def jobs(self, jobs: Sequence[str]) -> list[Job]:
        """Return the jobs with these ids, in order. Raises UnknownJob if any of them does not exist."""
        found = self.present(jobs)
        if len(found) < len(jobs):
            existing = {job.id for job in found}
            missing = next(job for job in jobs if job not in existing)
            raise UnknownJob(f"There is no job {missing!r}; it may have expired.")
        return found

    def present(self, jobs: Sequence[str]) -> list[Job]:
        """Return the jobs that exist among these ids, in order."""
        pipeline = self._state.pipeline(transaction=False)
        for job in jobs:
            pipeline.hgetall(keys.job(job))
            pipeline.hget(keys.job_definition(job), "metadata")
            pipeline.hgetall(keys.job_reasons(job))
            pipeline.hgetall(keys.job_workers(job))
            pipeline.hgetall(keys.job_usage(job))
        pipeline.time()
        *replies, (seconds, micros) = pipeline.execute()
        parts = [replies[5 * at : 5 * at + 5] for at in range(len(jobs))]
        return [_as_job(job, each, seconds + micros / 1e6) for job, each in zip(jobs, parts, strict=True) if each[0]]

    def stages(self, job_id: str) -> list[dict[str, Any]]:
        """Return the job's stages as the ledger stores them; an empty list when the job does not exist any more."""
        return cast(
            list[dict[str, Any]], json.loads(str(self._state.hget(keys.job_definition(job_id), "stages") or "[]"))
        )

    def with_their_groups(self, job_id: str, indices: Sequence[int]) -> list[int]:
        """Return the items and, if the job's kind has a grouped stage, every other member of their groups. Sorted."""
        if not self._state.exists(keys.job_members(job_id)):
            return sorted(indices)
        found = set(indices)
        for start in range(0, len(indices), PAGE):
            pipeline = self._state.pipeline(transaction=False)
            for index in indices[start : start + PAGE]:
                page, at = divmod(index, PAGE_ITEMS)
                pipeline.getrange(keys.job_groups(job_id, str(page)), at * GROUP_DIGITS, (at + 1) * GROUP_DIGITS - 1)
            groups = sorted({str(int(group)) for group in pipeline.execute() if group})
            members = cast(list[str | None], self._state.hmget(keys.job_members(job_id), groups)) if groups else []
            found.update(index for ranges in members for index in expand(ranges or ""))
        return sorted(found)


def _as_job(job_id: str, parts: Sequence[Any], now: float) -> Job:
    fields, metadata, reasons, workers, usage = parts
    layout = Layout.parse(fields.get("layout", ""))
    trials = layout.trials  # counters are in rows: the trials of an item always have the same outcome
    ok, failed, cached, total = (int(fields.get(name) or 0) // trials for name in ("ok", "failed", "cached", "total"))
    created, started, ended = (
        float(fields.get(name) or 0) or None for name in ("created_at", "started_at", "ended_at")
    )
    elapsed = (ended or now) - (started or created or now)
    worked = ok + failed - cached
    rate = worked / elapsed if worked > 0 and elapsed > 0 else None
    state = fields["state"]
    is_open = fields.get("open") == "1"
    on_error = json.loads(fields["on_error"])
    return Job(
        id=job_id,
        kind=fields["kind"],
        state=cast(Any, state),
        priority=cast(Any, fields["priority"]),
        total=total,
        ok=ok,
        failed=failed,
        cached=cached,
        epoch=int(fields.get("epoch") or 0),
        paused=fields.get("paused") == "1",
        open=is_open,
        trimmed=int(fields.get("trimmed") or 0),
        layout=layout,
        reason=fields.get("reason", ""),
        reasons={name: int(number) // trials for name, number in reasons.items() if int(number) > 0},
        workers={
            name: {"items": int(number), "seconds": float(workers.get(f"{name}:s", 0))}
            for name, number in workers.items()
            if not name.endswith(":s")
        },
        created_at=created or 0.0,
        started_at=started,
        ended_at=ended,
        metadata=json.loads(metadata or "{}"),
        fill=on_error["fill"] if isinstance(on_error, dict) else None,
        rate=rate,
        eta_s=(total - ok - failed) / rate if rate and state in ACTIVE and not is_open else None,
        asks=fields.get("asks") == "1",
        usage=as_usage(usage) if fields.get("asks") == "1" else None,
    )
