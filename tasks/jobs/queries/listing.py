"""Job listing: pages of jobs, newest first, with an opaque cursor. A request scans a bounded number of jobs."""

import re
from dataclasses import dataclass
from typing import cast

from redis import Redis

from tasks import lua
from tasks.errors import InvalidRequest
from tasks.jobs.model import Job
from tasks.jobs.queries import SCRIPTS
from tasks.jobs.state.job_store import JobStore

#: Maximum number of jobs scanned per request. If few jobs match the filter, the page is short or empty, and `next`
#: continues from the last scanned job.
MOST_LOOKED_AT = 2000

_CURSOR = re.compile(r"([0-9]{1,12}\.[0-9]{1,9})_([0-9a-f]{1,64})")


@dataclass(frozen=True, slots=True)
class JobListPage:
    jobs: list[Job]
    next: str | None


class JobListing:
    def __init__(self, state: Redis, store: JobStore) -> None:
        self._find = state.register_script(lua.load(SCRIPTS / "find_jobs.lua"))
        self._store = store

    def page(self, kind: str | None, state: str | None, limit: int, cursor: str | None) -> JobListPage:
        """Return a page of jobs. Raises InvalidRequest when the cursor is invalid."""
        before, after = _parsed(cursor)
        args = (before, after, kind or "", state or "", limit, MOST_LOOKED_AT)
        at, last, *found = cast(list[str], self._find(keys=[], args=args))
        return JobListPage(self._store.present(found), f"{float(at)!r}_{last}" if at else None)


def _parsed(cursor: str | None) -> tuple[str, str]:
    """Parse a cursor: return the time to start from, and the last job seen of that time."""
    if cursor is None:
        return "inf", ""
    if not (match := _CURSOR.fullmatch(cursor)):
        raise InvalidRequest("cursor: send the `next` of an earlier page unchanged.", field="cursor")
    return match[1], match[2]
