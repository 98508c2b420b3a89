"""State of a profile's circuit breaker. `scripts/include/circuit.lua` opens and closes it by the results of calls.

closed ──too many failures in a row, or asked to wait long──▶ open ──time is up──▶ half open: one call tries for all
   ▲                                                           ▲                       │
   └────────────────────────────the call is answered───────────┴──────the call fails───┘
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from redis import Redis

from config import keys

State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class Circuit:
    state: State = "closed"
    reason: str = ""
    """Last message of the API, or the last failure to reach it."""
    wait_s: float = 0.0
    """Seconds until a call may try again."""


def read_circuit(state: Redis, profile: str) -> Circuit:
    pipeline = state.pipeline(transaction=False)
    pipeline.hgetall(keys.api_circuit(profile))
    pipeline.time()
    record, (seconds, microseconds) = pipeline.execute()
    return as_circuit(record, seconds + microseconds / 1e6)


def as_circuit(record: Mapping[str, str], now: float) -> Circuit:
    if "state" not in record:  # failures are counted, but too few to open it
        return Circuit()
    wait_s = max(float(record["until"]) - now, 0.0)
    return Circuit(cast(State, record["state"]), record.get("reason", ""), wait_s)
