"""Job summary: statistics of scores and latencies, and failure reasons, computed from a job's rows without I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

BINS = 20
#: Up to this number of distinct scores, each score gets a separate bin of the histogram.
MOST_VALUES = 12
#: Maximum number of examples per failure reason, and maximum length of their messages in characters.
EXAMPLES, MESSAGE_CHARACTERS = 3, 500
PERCENTILES = (50, 90, 95, 99)


class JobSummary:
    def __init__(self) -> None:
        self.looked_at = 0
        self._scores: list[float] = []
        self._latencies: list[float] = []
        self._statuses: Counter[str] = Counter()
        self._types: Counter[str] = Counter()
        self._examples: dict[str, list[dict[str, Any]]] = {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self.looked_at += 1
            self._statuses[row["status"]] += 1
            if row["valid"] and row["score"] is not None:
                self._scores.append(row["score"])
            if row["latency_ms"] is not None and not row["cached"]:
                self._latencies.append(row["latency_ms"])
            if error := row["error"]:
                self._types[error["type"]] += 1
                self._keep(row, error)

    def _keep(self, row: Mapping[str, Any], error: Mapping[str, Any]) -> None:
        """Keep examples with different messages, since they explain more than the first few failures."""
        kept = self._examples.setdefault(error["type"], [])
        message = str(error["message"])[:MESSAGE_CHARACTERS]
        if len(kept) < EXAMPLES and all(each["message"] != message for each in kept):
            kept.append(
                {name: row[name] for name in ("index", "id", "worker", "attempts")}
                | {"message": message, "retryable": error["retryable"]}
            )

    def as_json(self, counted: Mapping[str, int]) -> dict[str, Any]:
        """Return the summary. `counted`: number of failed items by error type from the ledger, which counts every
        item."""
        types = dict(self._types) | dict(counted)
        return {
            "statuses": dict(self._statuses),
            "scores": _scores(self._scores),
            "latency_ms": _latencies(self._latencies),
            "failures": [
                {"type": name, "count": number, "examples": self._examples.get(name, [])}
                for name, number in sorted(types.items(), key=lambda pair: (-pair[1], pair[0]))
            ],
        }


def _scores(scores: Sequence[float]) -> dict[str, Any] | None:
    if not scores:
        return None
    least, most = min(scores), max(scores)
    return {
        "n": len(scores),
        "mean": sum(scores) / len(scores),
        "least": least,
        "most": most,
        "bins": _bins(scores, least, most),
    }


def _bins(scores: Sequence[float], least: float, most: float) -> list[dict[str, float]]:
    values = Counter(scores)
    if len(values) <= MOST_VALUES:
        return [{"low": value, "high": value, "count": values[value]} for value in sorted(values)]
    width = (most - least) / BINS
    places = Counter(min(BINS - 1, int((score - least) / width)) for score in scores)
    edges = [least + place * width for place in range(BINS)] + [most]
    return [{"low": edges[at], "high": edges[at + 1], "count": places[at]} for at in range(BINS)]


def _latencies(latencies: Sequence[float]) -> dict[str, float] | None:
    if not latencies:
        return None
    ordered = sorted(latencies)
    found = {f"p{share}": ordered[min(len(ordered) - 1, share * len(ordered) // 100)] for share in PERCENTILES}
    return {"n": len(ordered), "least": ordered[0]} | found | {"most": ordered[-1]}
