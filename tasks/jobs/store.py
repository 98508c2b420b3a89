"""Reading and writing what a job holds: payloads, outcomes, counters. No state changes here; those are the ledger's."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis
from redis.client import Pipeline

from config import keys
from tasks.errors import UnknownJob
from tasks.jobs.ledger import compress
from tasks.jobs.model import ACTIVE, Job

#: Items stored together. A chunk reads whole blocks, so small ones waste little and large ones cost few commands.
BLOCK_ITEMS = 100
#: Outcomes read in one command.
PAGE = 500
#: Seconds that payloads written ahead of their job live if the job is never created.
STAGING_S = 3600


@dataclass(frozen=True, slots=True)
class Recipe:
    """The part of a job that never changes: what a worker needs to run its items."""

    id: str
    kind: str
    spec: dict[str, Any]
    cache: str


class Store:
    def __init__(self, state: Redis) -> None:
        self._state = state

    # --- payloads ---

    def write_items(self, job: str, items: Sequence[dict[str, Any]]) -> None:
        """Before the job exists; lapses if it never does."""
        pipeline = self._state.pipeline(transaction=False)
        for block in range(0, len(items), BLOCK_ITEMS):
            body = json.dumps(items[block : block + BLOCK_ITEMS], separators=(",", ":"))
            pipeline.hset(keys.job_blocks(job), str(block // BLOCK_ITEMS), body)
        pipeline.expire(keys.job_blocks(job), STAGING_S)
        pipeline.execute()

    def read_work(
        self, wanted: Sequence[tuple[str, Sequence[int]]], unknown: Sequence[str]
    ) -> tuple[list[dict[int, tuple[dict[str, Any], dict[str, Any] | None, int]]], dict[str, Recipe]]:
        """For each (job, indices): index -> (payload, what the last stage handed on, attempts). And the recipes of jobs
        not known yet, as far as they exist. All in one round trip."""
        pipeline = self._state.pipeline(transaction=False)
        for job in unknown:
            pipeline.hmget(keys.job(job), ["kind", "spec", "cache"])
        for job, indices in wanted:
            blocks = sorted({index // BLOCK_ITEMS for index in indices})
            pipeline.hmget(keys.job_blocks(job), [str(block) for block in blocks])
            pipeline.hmget(keys.job_carry(job), [str(index) for index in indices])
            pipeline.hmget(keys.job_attempts(job), [str(index) for index in indices])
        replies = iter(pipeline.execute())
        recipes = {}
        for job in unknown:
            kind, spec, cache = next(replies)
            if kind and spec:
                recipes[job] = Recipe(job, kind, json.loads(spec), cache or "use")
        work = []
        for _, indices in wanted:
            blocks = sorted({index // BLOCK_ITEMS for index in indices})
            bodies, carries, attempts = next(replies), next(replies), next(replies)
            loaded = {block: json.loads(body) for block, body in zip(blocks, bodies, strict=True) if body}
            work.append(
                {
                    index: (
                        loaded[index // BLOCK_ITEMS][index % BLOCK_ITEMS],
                        json.loads(carry) if carry else None,
                        int(tried or 0),
                    )
                    for index, carry, tried in zip(indices, carries, attempts, strict=True)
                    if index // BLOCK_ITEMS in loaded
                }
            )
        return work, recipes

    def write_groups(self, job: str, members: dict[str, list[int]]) -> None:
        """Who belongs to which group; lapses if the job is never created."""
        pipeline = self._state.pipeline(transaction=False)
        for group, indices in members.items():
            pipeline.hset(keys.job_members(job), group, compress(indices))
            pipeline.hset(keys.job_awaited(job), group, str(len(indices)))
            for index in indices:
                pipeline.hset(keys.job_groups(job), str(index), group)
        for key in (keys.job_members(job), keys.job_awaited(job), keys.job_groups(job)):
            pipeline.expire(key, STAGING_S)
        pipeline.execute()

    def with_their_groups(self, job: str, indices: Sequence[int]) -> list[int]:
        """These items and all that share a group with one of them, where the job's kind has a grouped stage."""
        every = {int(index): group for index, group in self._state.hgetall(keys.job_groups(job)).items()}
        touched = {every[index] for index in indices if index in every}
        return sorted(set(indices) | {index for index, group in every.items() if group in touched})

    # --- reading ---

    def states(self, jobs: Sequence[str]) -> list[str | None]:
        pipeline: Pipeline = self._state.pipeline(transaction=False)
        for job in jobs:
            pipeline.hget(keys.job(job), "state")
        return list(pipeline.execute())

    def job(self, job: str) -> Job:
        pipeline = self._state.pipeline(transaction=False)
        pipeline.hgetall(keys.job(job))
        pipeline.hgetall(keys.job_reasons(job))
        pipeline.hgetall(keys.job_workers(job))
        pipeline.time()
        fields, reasons, workers, (seconds, micros) = pipeline.execute()
        if not fields:
            raise UnknownJob(f"There is no job {job!r}; it may have expired.")
        return _as_job(job, fields, reasons, workers, seconds + micros / 1e6)

    def outcomes(self, job: str, start: int, stop: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Index and outcome, in input order; None for an item that has none yet."""
        for first in range(start, stop, PAGE):
            indices = range(first, min(first + PAGE, stop))
            for index, body in zip(
                indices, self._state.hmget(keys.job_outcomes(job), [str(i) for i in indices]), strict=True
            ):
                yield index, json.loads(cast(str, body)) if body else None

    def items(self, job: str, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Payloads, in input order."""
        for block in range(start // BLOCK_ITEMS, (stop - 1) // BLOCK_ITEMS + 1):
            body = self._state.hget(keys.job_blocks(job), str(block))
            items = json.loads(cast(str, body)) if body else []
            first = block * BLOCK_ITEMS
            yield from items[max(0, start - first) : stop - first]


def _as_job(job: str, fields: dict[str, str], reasons: dict[str, str], workers: dict[str, str], now: float) -> Job:
    ok, failed, cached, total = (int(fields.get(name) or 0) for name in ("ok", "failed", "cached", "total"))
    created, started, ended = (
        float(fields.get(name) or 0) or None for name in ("created_at", "started_at", "ended_at")
    )
    elapsed = (ended or now) - (started or created or now)
    worked = ok + failed - cached
    rate = worked / elapsed if worked > 0 and elapsed > 0 else None
    state = fields["state"]
    return Job(
        id=job,
        kind=fields["kind"],
        state=cast(Any, state),
        priority=cast(Any, fields["priority"]),
        total=total,
        ok=ok,
        failed=failed,
        cached=cached,
        epoch=int(fields.get("epoch") or 0),
        paused=fields.get("paused") == "1",
        reason=fields.get("reason", ""),
        reasons={name: int(number) for name, number in reasons.items() if int(number) > 0},
        workers={
            name: {"items": int(number), "seconds": float(workers.get(f"{name}:s", 0))}
            for name, number in workers.items()
            if not name.endswith(":s")
        },
        created_at=created or 0.0,
        started_at=started,
        ended_at=ended,
        metadata=json.loads(fields.get("metadata") or "{}"),
        fill=on_error["fill"] if isinstance(on_error := json.loads(fields["on_error"]), dict) else None,
        rate=rate,
        eta_s=(total - ok - failed) / rate if rate and state in ACTIVE else None,
    )
