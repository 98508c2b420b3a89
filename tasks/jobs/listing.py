"""Jobs, newest first, page by page. Filters look at a bounded number of jobs; the cursor says where to go on."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from redis import Redis

from config import keys
from tasks.errors import InvalidRequest, UnknownJob
from tasks.jobs.model import Job
from tasks.jobs.store import Store

#: Ids read in one command.
PAGE = 200
#: Jobs a request looks at; with a rare filter its page is then short, or empty, and `next` goes on from there.
MOST_LOOKED_AT = 2000

_CURSOR = re.compile(r"([0-9]{1,12}\.[0-9]{1,9})_([0-9a-f]{1,64})")


@dataclass(frozen=True, slots=True)
class Listing:
    jobs: list[Job]
    next: str | None


class Jobs:
    def __init__(self, state: Redis, store: Store) -> None:
        self._state = state
        self._store = store

    def page(self, kind: str | None, state: str | None, limit: int, cursor: str | None) -> Listing:
        """Raises InvalidRequest when the cursor is none of ours."""
        found: list[str] = []
        last = None
        for looked_at, (score, job, its_kind, its_state) in enumerate(self._newest(cursor)):
            if len(found) == limit or looked_at == MOST_LOOKED_AT:
                return Listing(self._read(found), last)
            last = f"{score!r}_{job}"
            if kind in (None, its_kind) and state in (None, its_state) and its_state:
                found.append(job)
        return Listing(self._read(found), None)

    def _newest(self, cursor: str | None) -> Iterator[tuple[float, str, str | None, str | None]]:
        """Time, id, kind and state of all jobs after the cursor."""
        before, after = _parsed(cursor)
        while True:
            # Jobs of one instant are in reverse order of their ids: read from the instant itself on, and skip.
            rows = cast(
                list[tuple[str, float]],
                self._state.zrevrangebyscore(keys.jobs(), before, "-inf", start=0, num=PAGE, withscores=True),
            )
            fresh = [(job, score) for job, score in rows if not (score == float(before) and job >= after)]
            if not fresh:
                return
            pipeline = self._state.pipeline(transaction=False)
            for job, _score in fresh:
                pipeline.hmget(keys.job(job), ["kind", "state"])
            for (job, score), (kind, state) in zip(fresh, pipeline.execute(), strict=True):
                yield score, job, kind, state
            if len(rows) < PAGE:
                return
            after, before = fresh[-1][0], repr(fresh[-1][1])

    def _read(self, jobs: list[str]) -> list[Job]:
        read = []
        for job in jobs:
            try:
                read.append(self._store.job(job))
            except UnknownJob:  # expired since
                continue
        return read


def _parsed(cursor: str | None) -> tuple[str, str]:
    """The time to start from, and the last job seen of that time."""
    if cursor is None:
        return "inf", ""
    if not (match := _CURSOR.fullmatch(cursor)):
        raise InvalidRequest("cursor: give the `next` of an earlier page as it was.", field="cursor")
    return match[1], match[2]
