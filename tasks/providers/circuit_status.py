"""State of a profile's circuit breaker, which `scripts/include/circuit_breaker.lua` changes by the results of calls.

closed ──consecutive failures, or a long Retry-After──▶ open ──time expires──▶ half open: a single call probes the API
   ▲                                                     ▲                       │
   └─────────────────────────the probe is answered───────┴─────the probe fails───┘
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

State = Literal["closed", "open", "half_open"]


@dataclass(frozen=True, slots=True)
class Circuit:
    state: State = "closed"
    reason: str = ""
    """Last error message of the API, or the last connection failure."""
    wait_s: float = 0.0
    """Seconds until the circuit lets a call through again."""


def as_circuit(record: Mapping[str, str], now: float) -> Circuit:
    if "state" not in record:  # failures are counted, but the circuit has not opened
        return Circuit()
    wait_s = max(float(record["until"]) - now, 0.0)
    return Circuit(cast(State, record["state"]), record.get("reason", ""), wait_s)
