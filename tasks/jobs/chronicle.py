"""What happened to jobs, as lines in the log: one for each that came, began, ended, or was held, retried or recovered.

The scripts note it, in whatever process they run; whoever ticks next writes it down, so that each line is written once.
"""

import logging

from redis import Redis

from config import keys
from config.logging import bound

log = logging.getLogger(__name__)

#: Lines written at a time; of more there is only the number. Trainers make thousands of jobs a second.
MOST_LINES = 100
#: What is written before all else where there is more.
TROUBLE = ("recovered", "failed")


class Chronicle:
    def __init__(self, state: Redis) -> None:
        self._state = state

    def write(self) -> None:
        pipeline = self._state.pipeline(transaction=True)
        pipeline.lrange(keys.happened(), 0, -1)
        pipeline.delete(keys.happened())
        entries = [entry.split("|") for entry in pipeline.execute()[0]]
        if len(entries) > MOST_LINES:
            entries.sort(key=lambda entry: entry[1] not in TROUBLE)
        for job, event, kind, *fields in entries[:MOST_LINES]:
            with bound([job]):
                log.log(logging.WARNING if event == "recovered" else logging.INFO, "%s", _line(event, kind, fields))
        if len(entries) > MOST_LINES:
            log.info("and %d events of jobs more, at least", len(entries) - MOST_LINES)


def _line(event: str, kind: str, fields: list[str]) -> str:
    told = dict(zip(fields[::2], fields[1::2], strict=False))
    match event:
        case "queued":
            return f"{kind} job came: {told['total']} items, {told['priority']}"
        case "running":
            return f"{kind} job began"
        case "done" | "failed" | "cancelled":
            why = f" ({told['reason']})" if told.get("reason") else ""
            counts = f"{told['ok']} ok, {told['failed']} failed of {told['total']}"
            return f"{kind} job {event}{why}: {counts}, after {float(told['seconds']):.1f} s"
        case "recovered":
            return f"{told['items']} items of a {kind} job wait again: their process is gone"
        case _:
            return f"{kind} job {event}"
