"""Constants that the Lua scripts share with Python: name in Lua -> value. Each constant is defined once, in the module
from which it is imported; `tasks/lua.py` inserts the constants that a script uses."""

from typing import Final

from config.queues import PRIORITIES
from tasks.counters import BUCKETS, UNBOUNDED
from tasks.jobs.state.ledger_format import (
    CARRY_SEPARATOR,
    CLAIM_S,
    EVENTS_KEPT,
    EVENTS_TTL_S,
    GROUP_DIGITS,
    PAGE_ITEMS,
    PARTS,
    PRIORITY_SPAN,
    PROGRESS_EVERY_S,
    RESTED,
    STUB_PREFIX,
)
from tasks.jobs.states import (
    ACTIVE,
    CANCELLED,
    DISPATCHED,
    DONE,
    FAILED,
    FINISHING,
    QUEUED,
    REOPENING,
    RETRIABLE,
    RUNNABLE,
    RUNNING,
)
from tasks.providers.limiter_format import API_KEPT_S, HOLDER_S

CONSTANTS: Final[dict[str, object]] = {
    # states of jobs and chunks
    "ACTIVE": frozenset(ACTIVE),
    "RUNNABLE": frozenset(RUNNABLE),
    "RETRIABLE": frozenset(RETRIABLE),
    "QUEUED": QUEUED,
    "RUNNING": RUNNING,
    "FINISHING": FINISHING,
    "REOPENING": REOPENING,
    "DONE": DONE,
    "FAILED": FAILED,
    "CANCELLED": CANCELLED,
    "DISPATCHED": DISPATCHED,
    # priorities
    "PRIORITIES": PRIORITIES,
    "RANKS": {priority: rank for rank, priority in enumerate(PRIORITIES)},
    "PRIORITY_SPAN": PRIORITY_SPAN,
    # records of the ledger
    "PAGE_ITEMS": PAGE_ITEMS,
    "GROUP_DIGITS": GROUP_DIGITS,
    "PARTS": PARTS,
    "RESTED": RESTED,
    "EVENTS_KEPT": EVENTS_KEPT,
    "EVENTS_TTL_S": EVENTS_TTL_S,
    "PROGRESS_EVERY_S": PROGRESS_EVERY_S,
    "CARRY_SEPARATOR": CARRY_SEPARATOR,
    "CLAIM_S": CLAIM_S,
    "STUB_PREFIX": STUB_PREFIX,
    # records of the limiter
    "HOLDER_S": HOLDER_S,
    "API_KEPT_S": API_KEPT_S,
    # metrics
    "JOB_BUCKETS": BUCKETS["job_s"],
    "UNBOUNDED": UNBOUNDED,
}
