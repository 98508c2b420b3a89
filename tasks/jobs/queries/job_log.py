"""What happened to jobs, as lines in the log: one for each that came, began, ended, or was held, retried or recovered.

The scripts note it, in whatever process they run; whoever ticks next writes it down, so that each line is written once.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from redis import Redis

from config import keys
from config.logging import job_context

log = logging.getLogger(__name__)

#: Lines written at a time; of more there is only the number. Trainers make thousands of jobs a second.
MOST_LINES = 100
#: What is written before all else where there is more.
TROUBLE = ("recovered", "failed")


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
                log.log(logging.WARNING if entry["event"] == "recovered" else logging.INFO, "%s", _line(entry))
        if len(entries) > MOST_LINES:
            log.info("and %d events of jobs more, at least", len(entries) - MOST_LINES)


def _line(entry: Mapping[str, Any]) -> str:
    kind, event = entry["kind"], entry["event"]
    match event:
        case "queued":
            return f"{kind} job came: {entry['total']} items, {entry['priority']}"
        case "running":
            return f"{kind} job began"
        case "done" | "failed" | "cancelled":
            why = f" ({entry['reason']})" if entry.get("reason") else ""
            counts = f"{entry['ok']} ok, {entry['failed']} failed of {entry['total']}"
            return f"{kind} job {event}{why}: {counts}, after {float(entry['seconds']):.1f} s"
        case "recovered":
            return f"{entry['items']} items of a {kind} job wait again: their process is gone"
        case _:
            return f"{kind} job {event}"
