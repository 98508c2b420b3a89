"""Between a kind's result and what the ledger keeps: the outcome of one item, as JSON."""

import json
import math
from typing import Any

from tasks.jobs.ledger import Settled
from tasks.jobs.model import ItemError, Result


def settle(
    index: int, payload: dict[str, Any], result: Result, attempts: int = 1, latency_ms: float = 0.0, worker: str = ""
) -> Settled:
    """The result as it is counted and read back."""
    result = checked(result)
    # Without a payload at hand the names are left out, and filled in by who reads.
    names = {name: payload.get(name) for name in ("id", "group_id")} if payload else {}
    body = names | {
        "status": result.status,
        "score": result.score,
        "parts": dict(result.parts) if result.parts else None,
        "value": result.value,
        "error": None,
        "cached": result.cached,
        "attempts": attempts,
        "latency_ms": round(latency_ms, 3),
        "worker": worker,
    }
    if result.error:
        body["error"] = {
            "type": result.error.type,
            "message": result.error.message,
            "retryable": result.error.retryable,
        }
    return Settled(
        index=index,
        status=result.status,
        error_type=result.error.type if result.error else "",
        cached=result.cached,
        next=result.next,
        outcome=json.dumps(body, separators=(",", ":")),
    )


def retry_later(index: int, delay_s: float, attempts: int) -> Settled:
    """Not an outcome: the item is pending again after the delay."""
    return Settled(index, "retry", "", False, "", f"{delay_s:.3f} {attempts}")


def checked(result: Result) -> Result:
    """A score that is no number is a failure, not a score."""
    if result.score is None or math.isfinite(result.score):
        return result
    return Result(error=ItemError("not_a_number", f"The scorer returned {result.score}."))
