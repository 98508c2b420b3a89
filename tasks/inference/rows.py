"""From a row and its outcome to a row of the output file.

A good row is the input row without its context, with the answer, times and the worker's rank; a failed one has the
row's own keys and the reason. One comes out for each that went in, in the same order.
"""

import re
from collections.abc import Mapping
from typing import Any

#: Keys that a failed row keeps, so that it can be found again.
KEYS = ("id", "original_item_id", "query_index", "dedup_key")
#: What of an input row is not written to the output.
LEFT_OUT = ("context", "answered_as", "success", "error", "messages")

#: How an error begins in the output, by its type; `Inference error` is all the rest.
PREFIXES = {
    "device_out_of_memory": "GPU Out of Memory",
    "context_failed": "Context generation failed",
    "api_refused": "API Error",
    "api_unavailable": "API Error",
    "budget_spent": "API Error",
    "api_unreachable": "Network/Timeout Error",
    "api_timeout": "Network/Timeout Error",
    "timed_out": "Network/Timeout Error",
}
_RANK = re.compile(r"\.(\d+)$")


def output_row(item: Mapping[str, Any], outcome: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """`outcome` is the row of the job's results."""
    value = outcome.get("value") or {}
    seconds = value.get("inference_time")
    if seconds is None:
        seconds = (outcome.get("latency_ms") or 0.0) / 1000
    rank = rank_of(str(outcome.get("worker") or ""))
    if outcome["status"] != "ok":
        error = outcome["error"]
        return {name: item[name] for name in KEYS if name in item} | {
            "error": f"{PREFIXES.get(error['type'], 'Inference error')}: {error['message']}",
            "exception_type": value.get("exception_type") or _camel(error["type"]),
            "processing_time": round(seconds, 4),
            "worker_rank": rank,
            "inference_type": backend,
            "success": False,
        }
    spent = item.get("retrieval_time") or 0.0
    row = {name: given for name, given in item.items() if name not in LEFT_OUT and name != "retrieval_time"}
    row["answer"] = value["answers"][0]
    if len(value["answers"]) > 1:
        row["answers"] = value["answers"]
    if value.get("logprobs"):
        row["logprobs"] = value["logprobs"]
    return row | {
        "retrieval_time": spent,
        "inference_time": round(seconds, 4),
        "total_time": round(spent + seconds, 4),
        "worker_rank": rank,
        "success": True,
    }


def rank_of(worker: str) -> int | None:
    """The index of the worker's slot; None for what came from the cache before anybody worked."""
    found = _RANK.search(worker)
    return int(found[1]) if found else None


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
