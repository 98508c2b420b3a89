"""Serialization of results: converts a kind's result to an item's outcome, the line of JSON that the ledger stores and
clients read."""

import math
from typing import Any

from tasks import quick_json
from tasks.jobs.model import Bundle, ItemError, Result
from tasks.jobs.state.ledger import Attachment, Retry, Settled


def settle(
    index: int,
    payload: dict[str, Any],
    result: Result,
    attempts: int = 1,
    latency_ms: float = 0.0,
    worker: str = "",
    fill: float | None = None,
) -> Settled:
    """Serialize a result for the ledger. Without a payload, index and ids are left out; `completed` adds them."""
    result = checked(result)
    try:
        outcome = _write(_row(index, payload, result, attempts, latency_ms, worker, fill), bool(payload))
    except ValueError as error:  # JSON cannot represent infinity and NaN
        result = Result(
            error=ItemError("not_a_number", f"The value cannot be written as JSON: {error}."), next=result.next
        )
        outcome = _write(_row(index, payload, result, attempts, latency_ms, worker, fill), bool(payload))
    return Settled(
        index=index,
        status=result.status,
        error_type=result.error.type if result.error else "",
        cached=result.cached,
        next=result.next,
        outcome=outcome,
        attachment=attached(result.bundle, latency_ms / 1000) if result.bundle else None,
    )


def attached(bundle: Bundle, seconds: float) -> Attachment:
    """Convert a bundle to an attachment for the scripts of rollouts, see `samples.lua`."""
    about = {
        "oldest": bundle.oldest,
        "newest": bundle.newest,
        "samples": bundle.samples,
        "is_loose": bundle.is_loose,
        "partial": bundle.partial,
        "seconds": round(seconds, 6),
    }
    return Attachment(quick_json.write(about), quick_json.write(bundle.body))


def retry_later(settled: Settled, delay_s: float, attempts: int, rests: bool = False) -> Settled:
    """Turn a failed result into a retry: the item is pending again after the delay, unless a deadline passes first.
    `rests`: suspend this stage of the job until then, since its other items would fail in the same way."""
    row = quick_json.read(settled.outcome)
    row["status"], row["error"]["retryable"] = "timed_out", True
    row["error"]["message"] = f"The deadline passed after {attempts} attempts; last error: {row['error']['message']}"
    row["error"]["type"] = "timed_out"
    return Settled(
        settled.index,
        "retry",
        "timed_out",
        settled.cached,
        settled.next,
        _write(row, "id" in row),
        retry=Retry(delay_s, attempts, rests),
    )


def checked(result: Result) -> Result:
    """Return the result, or an error if its score is NaN or infinite."""
    if result.score is None or math.isfinite(result.score):
        return result
    return Result(error=ItemError("not_a_number", f"The scorer returned {result.score}."))


def is_complete(line: str) -> bool:
    """Return whether clients can read an outcome as it is. Outcomes written by scripts, or without a payload, must be
    completed first."""
    return line.startswith('{"index":')


def is_ok(line: str) -> bool:
    return bool(quick_json.read(line)["status"] == "ok")


def completed(line: str, index: int, payload: dict[str, Any], fill: float | None) -> str:
    """Return an outcome with every field that clients read, adding the index, the ids and the defaults."""
    known = quick_json.read(line)
    error = known.get("error")
    failure = ItemError(**error) if error else None
    result = Result(known.get("score"), error=failure, timed_out=known["status"] == "timed_out")
    row = _row(index, payload, result, known.get("attempts", 0), known.get("latency_ms"), known.get("worker"), fill)
    return _write(row | {name: value for name, value in known.items() if name not in ("score", "id", "group_id")}, True)


def unfinished(index: int, payload: dict[str, Any], status: str, message: str, fill: float | None) -> str:
    """Return the outcome that clients read for an item whose job ended before the item had one."""
    error = {"type": status, "message": message, "retryable": True}
    return completed(quick_json.write({"status": status, "error": error}), index, payload, fill)


def _row(
    index: int,
    payload: dict[str, Any],
    result: Result,
    attempts: int,
    latency_ms: float | None,
    worker: str | None,
    fill: float | None,
) -> dict[str, Any]:
    error = result.error
    return {
        "index": index,
        "id": payload.get("id"),
        "group_id": payload.get("group_id"),
        "status": result.status,
        "score": fill if error else result.score,
        "valid": error is None,
        "parts": dict(result.parts) if result.parts else None,
        "value": result.value,
        "error": {"type": error.type, "message": error.message, "retryable": error.retryable} if error else None,
        "cached": result.cached,
        "attempts": attempts,
        "latency_ms": None if latency_ms is None else round(latency_ms, 3),
        "worker": worker,
    }


def _write(row: dict[str, Any], has_names: bool) -> str:
    if not has_names:
        row = {name: value for name, value in row.items() if name not in ("index", "id", "group_id")}
    return quick_json.write(row)
