"""A turn to call an API, and what became of the call: what a process tells Redis of it."""

import time
from dataclasses import dataclass, field
from typing import Any

from tasks.errors import ApiUnavailable
from tasks.totals import MILLION, bucket


class CircuitOpen(ApiUnavailable):
    """The API failed too often in a row, and is let alone for a while."""

    reason = "api_unavailable"

    def __init__(self, wait_s: float, reason: str) -> None:
        super().__init__(f"let alone for {wait_s:.1f} s, as it failed too often in a row: {reason}")
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Turn:
    """One call that may begin."""

    slice: int
    tokens: int
    """Reserved for it."""
    use_by: float
    """On this process's monotonic clock: later it would be counted in another window than it falls into."""

    @property
    def is_stale(self) -> bool:
        return time.monotonic() > self.use_by


@dataclass(frozen=True, slots=True)
class Spent:
    """What one answered call used."""

    prompt_tokens: int
    completion_tokens: int
    cost_nano: int | None = None
    job: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a call, for all who share the limits."""

    ok: bool = False
    limited: bool = False
    failed: bool = False
    """The API itself failed: 5xx, no connection, no answer in time."""
    retry_after_s: float = 0.0
    """For everybody."""
    reason: str = ""
    spent: Spent | None = None
    seconds: float | None = None
    """From the call to its answer, or its failure."""


@dataclass(slots=True)
class Told:
    """What was not told yet."""

    ok: int = 0
    failed: int = 0
    limited: int = 0
    retry_after_s: float = 0.0
    reason: str = ""
    settled: dict[int, list[int]] = field(default_factory=dict)
    spent: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    latency: dict[str, int] = field(default_factory=dict)

    def end(self, turn: Turn, ended: Ended, used_tokens: int | None) -> None:
        self.ok += ended.ok
        self.failed += ended.failed
        self.limited += ended.limited
        self.retry_after_s = max(self.retry_after_s, ended.retry_after_s)
        self.reason = ended.reason or self.reason
        if used_tokens is not None:
            self.settle(turn.slice, 0, used_tokens - turn.tokens)
        if ended.spent:
            self.spend(ended.spent)
        if ended.seconds is not None:
            bound = bucket("api_s", ended.seconds)
            self.latency[bound] = self.latency.get(bound, 0) + 1
            self.latency["sum"] = self.latency.get("sum", 0) + round(ended.seconds * MILLION)

    def settle(self, slice_: int, requests: int, tokens: int) -> None:
        if requests or tokens:
            entry = self.settled.setdefault(slice_, [0, 0])
            entry[0] += requests
            entry[1] += tokens

    def spend(self, spent: Spent) -> None:
        entry = self.spent.setdefault((spent.job, spent.token), [0, 0, 0, 0, 0])
        values = (
            1,
            spent.prompt_tokens,
            spent.completion_tokens,
            spent.cost_nano or 0,
            int(spent.cost_nano is not None),
        )
        for at, value in enumerate(values):
            entry[at] += value

    def add(self, other: "Told") -> None:
        self.ok += other.ok
        self.failed += other.failed
        self.limited += other.limited
        self.retry_after_s = max(self.retry_after_s, other.retry_after_s)
        self.reason = self.reason or other.reason
        for slice_, (requests, tokens) in other.settled.items():
            self.settle(slice_, requests, tokens)
        for key, values in other.spent.items():
            before = self.spent.setdefault(key, [0] * len(values))
            self.spent[key] = [one + more for one, more in zip(before, values, strict=True)]
        for bound, number in other.latency.items():
            self.latency[bound] = self.latency.get(bound, 0) + number

    def as_asked(self, currency: str) -> dict[str, Any]:
        """As `scripts/exchange.lua` takes it."""
        spent = [
            {"job": job, "token": token, "calls": calls, "prompt_tokens": prompt, "completion_tokens": completion}
            | ({"cost": cost, "currency": currency} if priced else {})
            for (job, token), (calls, prompt, completion, cost, priced) in self.spent.items()
        ]
        return {
            "ok": self.ok,
            "failed": self.failed,
            "limited": self.limited,
            "retry_after_s": self.retry_after_s,
            "reason": self.reason[:500],
            "settled": [[slice_, *values] for slice_, values in self.settled.items()],
            "spent": spent,
            "latency": list(self.latency.items()),
        }
