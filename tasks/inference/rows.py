"""Builder of output rows: converts an input row and its outcome to a row of the output file.

A successful row is the input row without its context, plus the answer, times and the worker's rank; a failed row has
the identifying keys of the input row and the error. The output has exactly one row per input row, in the same order.
"""

import re
from collections.abc import Mapping
from typing import Any

#: Keys that a failed row keeps, to identify its input row.
IDENTIFYING_KEYS = ("id", "original_item_id", "query_index", "dedup_key")
#: Keys of an input row that are not written to the output.
OMITTED_KEYS = ("context", "answered_as", "success", "error", "messages")

#: Prefix of an error in the output by its type; other types have the prefix `Inference error`.
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
    """Return the output row of an item; `outcome` is its row in the job's results."""
    value = outcome.get("value") or {}
    seconds = value.get("inference_time")
    if seconds is None:
        seconds = (outcome.get("latency_ms") or 0.0) / 1000
    rank = rank_of(str(outcome.get("worker") or ""))
    if outcome["status"] != "ok":
        error = outcome["error"]
        return {name: item[name] for name in IDENTIFYING_KEYS if name in item} | {
            "error": f"{PREFIXES.get(error['type'], 'Inference error')}: {error['message']}",
            "exception_type": value.get("exception_type") or _camel_case(error["type"]),
            "processing_time": round(seconds, 4),
            "worker_rank": rank,
            "inference_type": backend,
            "success": False,
        }
    spent = item.get("retrieval_time") or 0.0
    row = {name: given for name, given in item.items() if name not in OMITTED_KEYS and name != "retrieval_time"}
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
    """Return the index of the worker's slot; None for an answer served from the cache without a worker."""
    found = _RANK.search(worker)
    return int(found[1]) if found else None


def _camel_case(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
