"""Statistics of an inference job, per worker and in total. Aggregated row by row, in constant memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.inference.rows import rank_of


@dataclass(slots=True)
class WorkerTotals:
    """Counts and times of a worker, or of the whole job."""

    contexts: int = 0
    successes: int = 0
    cached: int = 0
    inference_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    close_calls: int = 0
    """Rows with an answer that might differ in a different batch."""
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, outcome: Mapping[str, Any]) -> None:
        value = outcome.get("value") or {}
        self.contexts += 1
        self.cached += bool(outcome["cached"])
        self.successes += outcome["status"] == "ok"
        self.close_calls += bool(value.get("close_calls"))
        if outcome["error"]:
            reason = outcome["error"]["type"]
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if outcome["status"] == "ok" and not outcome["cached"]:
            self.inference_s += value.get("inference_time") or 0.0
            self.prompt_tokens += value["tokens"]["prompt"]
            self.completion_tokens += value["tokens"]["completion"]

    def as_json(self, busy_s: float) -> dict[str, Any]:
        """Return the figures of the API. `busy_s`: seconds that the worker, or the job, took."""
        computed = self.successes - self.cached
        return {
            "contexts": self.contexts,
            "successes": self.successes,
            "errors": self.contexts - self.successes,
            "success_rate": self.successes / self.contexts if self.contexts else None,
            "cached": self.cached,
            "average_inference_time": self.inference_s / computed if computed > 0 else None,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "tokens_per_s": self.completion_tokens / busy_s if busy_s > 0 and self.completion_tokens else None,
            "close_calls": self.close_calls,
            "reasons": dict(sorted(self.reasons.items())),
        }


class Statistics:
    def __init__(self) -> None:
        self._total = WorkerTotals()
        self._workers: dict[str, WorkerTotals] = {}

    def add(self, outcome: Mapping[str, Any]) -> None:
        self._total.add(outcome)
        if worker := outcome.get("worker"):
            self._workers.setdefault(str(worker), WorkerTotals()).add(outcome)

    def as_json(self, busy_s: Mapping[str, float], elapsed_s: float) -> dict[str, Any]:
        """Return the statistics of the API. `busy_s`: busy seconds per worker, as recorded with the job."""
        workers = [
            {"worker": name, "worker_rank": rank_of(name), **totals.as_json(busy_s.get(name, 0.0))}
            for name, totals in sorted(self._workers.items())
        ]
        return {"workers": workers, "total": self._total.as_json(elapsed_s)}
