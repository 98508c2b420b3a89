"""Between a kind's result and what the ledger keeps: the outcome of one item, as JSON."""

import json
import math
from typing import Any

from tasks.jobs.ledger import Settled
from tasks.jobs.model import ItemError, Result


def settle(
    index: int, payload: dict[str, Any], result: Result, attempts: int = 1, latency_ms: float = 0.0, worker: str = ""
) -> Settled:
    """The result as it is counted and read back. A score that is no number is a failure, not a score."""
    if result.score is not None and not math.isfinite(result.score):
        result = Result(error=ItemError("not_a_number", f"The scorer returned {result.score}."))
    body = {
        "id": payload.get("id"),
        "group_id": payload.get("group_id"),
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


def retry_later(index: int, delay_s: float) -> Settled:
    """Not an outcome: the item is pending again after the delay."""
    return Settled(index, "retry", "", False, "", f"{delay_s:.3f}")
