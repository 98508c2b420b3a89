"""Job log: a log line for each job that was submitted, started, ended, paused, retried or recovered.

The Lua scripts queue the events in Redis, from any process. The process that runs the next round of recovery writes
them, so that each line is written at most once.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from redis import Redis

from config import keys
from config.logging import job_context
from tasks.jobs import states

log = logging.getLogger(__name__)

#: Maximum number of lines per round; only the number of further events is logged, since trainers submit thousands of
#: jobs per second.
MOST_LINES = 100
#: Events that are logged first when a round has more than MOST_LINES events.
TROUBLE = ("repaired", "recovered", "failed")


class JobLog:
    def __init__(self, state: Redis) -> None:
        self._state = state

    def write(self) -> None:
        pipeline = self._state.pipeline(transaction=True)
        pipeline.lrange(keys.happened(), 0, -1)
        pipeline.delete(keys.happened())
        entries: list[dict[str, Any]] = [json.loads(entry) for entry in pipeline.execute()[0]]
        if len(entries) > MOST_LINES:
            entries.sort(key=lambda entry: entry["event"] not in TROUBLE)
        for entry in entries[:MOST_LINES]:
            with job_context([entry["job_id"]]):
                log.log(logging.WARNING if entry["event"] in TROUBLE[:2] else logging.INFO, "%s", _line(entry))
        if len(entries) > MOST_LINES:
            log.info("and at least %d further job events", len(entries) - MOST_LINES)


def _line(entry: Mapping[str, Any]) -> str:
    kind, event = entry["kind"], entry["event"]
    match event:
        case states.QUEUED:
            return f"{kind} job submitted: {entry['total']} items, {entry['priority']}"
        case states.RUNNING:
            return f"{kind} job started"
        case states.DONE | states.FAILED | states.CANCELLED:
            why = f" ({entry['reason']})" if entry.get("reason") else ""
            counts = f"{entry['ok']} ok, {entry['failed']} failed of {entry['total']}"
            return f"{kind} job {event}{why}: {counts}, after {float(entry['seconds']):.1f} s"
        case "recovered":
            return f"{entry['items']} items of a {kind} job are pending again: their process did not finish them"
        case "repaired":
            return f"{entry['items']} items of a {kind} job were in no place and are pending again"
        case _:
            return f"{kind} job {event}"
