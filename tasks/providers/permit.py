"""Permit to make a single call of an API, and the results of calls as a process reports them to the limiter."""

import time
from dataclasses import dataclass, field
from typing import Any

from tasks.counters import MILLION, bucket
from tasks.errors import ApiUnavailable

#: Maximum characters of a failure's reason that are stored.
REASON_CHARACTERS = 500


class CircuitOpen(ApiUnavailable):
    """The circuit is open: the API failed too often in a row, and it is not called until the circuit closes."""

    reason = "api_unavailable"

    def __init__(self, wait_s: float, reason: str) -> None:
        super().__init__(f"circuit open for {wait_s:.1f} s after repeated failures: {reason}")
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Permit:
    """Permit for a call to begin."""

    slice: int
    """Slice of the rate window that counts the call."""
    tokens: int
    """Tokens reserved for the call."""
    use_by: float
    """Deadline on this process's monotonic clock: a later call would fall outside the window that counts it."""

    @property
    def is_stale(self) -> bool:
        return time.monotonic() > self.use_by


@dataclass(frozen=True, slots=True)
class CallUsage:
    """Tokens and cost of an answered call."""

    prompt_tokens: int
    completion_tokens: int
    cost_nano: int | None = None
    """Billionths of the profile's currency; None when the profile has no prices."""
    job_id: str = ""
    token: str = ""
    """Name of the bearer token."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """Result of a call, reported to the processes that share the limits."""

    ok: bool = False
    limited: bool = False
    """The API answered 429."""
    failed: bool = False
    """The API itself failed: 5xx, no connection, no answer in time."""
    retry_after_s: float = 0.0
    """Seconds for which the API asks its callers to wait."""
    reason: str = ""
    usage: CallUsage | None = None
    seconds: float | None = None
    """Time from the call to its answer, or its failure."""


@dataclass(slots=True)
class _UsageSum:
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_nano: int = 0
    is_priced: bool = False

    def add(self, other: "_UsageSum") -> None:
        self.calls += other.calls
        self.prompt_tokens += other.prompt_tokens
        self.completion_tokens += other.completion_tokens
        self.cost_nano += other.cost_nano
        self.is_priced |= other.is_priced


@dataclass(slots=True)
class CallReport:
    """Results of calls that have not been reported to the limiter yet."""

    ok: int = 0
    failed: int = 0
    limited: int = 0
    retry_after_s: float = 0.0
    reason: str = ""
    settled: dict[int, list[int]] = field(default_factory=dict)
    """Slice -> requests and tokens to correct."""
    usage: dict[tuple[str, str], _UsageSum] = field(default_factory=dict)
    """Usage by job and bearer token."""
    latency: dict[str, int] = field(default_factory=dict)
    """Calls by bucket of seconds, and their sum."""

    def add_result(self, permit: Permit, result: CallResult, used_tokens: int | None) -> None:
        self.ok += result.ok
        self.failed += result.failed
        self.limited += result.limited
        self.retry_after_s = max(self.retry_after_s, result.retry_after_s)
        self.reason = result.reason or self.reason
        if used_tokens is not None:
            self.settle(permit.slice, 0, used_tokens - permit.tokens)
        if used := result.usage:
            cost = used.cost_nano
            added = _UsageSum(1, used.prompt_tokens, used.completion_tokens, cost or 0, cost is not None)
            self.usage.setdefault((used.job_id, used.token), _UsageSum()).add(added)
        if result.seconds is not None:
            bound = bucket("api_s", result.seconds)
            self.latency[bound] = self.latency.get(bound, 0) + 1
            self.latency["sum"] = self.latency.get("sum", 0) + round(result.seconds * MILLION)

    def settle(self, slice_: int, requests: int, tokens: int) -> None:
        """Correct the counts of a slice."""
        if requests or tokens:
            entry = self.settled.setdefault(slice_, [0, 0])
            entry[0] += requests
            entry[1] += tokens

    def add(self, other: "CallReport") -> None:
        self.ok += other.ok
        self.failed += other.failed
        self.limited += other.limited
        self.retry_after_s = max(self.retry_after_s, other.retry_after_s)
        self.reason = self.reason or other.reason
        for slice_, (requests, tokens) in other.settled.items():
            self.settle(slice_, requests, tokens)
        for key, added in other.usage.items():
            self.usage.setdefault(key, _UsageSum()).add(added)
        for bound, number in other.latency.items():
            self.latency[bound] = self.latency.get(bound, 0) + number

    def as_record(self, currency: str) -> dict[str, Any]:
        """Return the report as `scripts/exchange.lua` takes it."""
        spent = [
            {
                "job_id": job_id,
                "token": token,
                "calls": each.calls,
                "prompt_tokens": each.prompt_tokens,
                "completion_tokens": each.completion_tokens,
            }
            | ({"cost": each.cost_nano, "currency": currency} if each.is_priced else {})
            for (job_id, token), each in self.usage.items()
        ]
        return {
            "ok": self.ok,
            "failed": self.failed,
            "limited": self.limited,
            "retry_after_s": self.retry_after_s,
            "reason": self.reason[:REASON_CHARACTERS],
            "settled": [
                {"slice": slice_, "requests": requests, "tokens": tokens}
                for slice_, (requests, tokens) in self.settled.items()
            ],
            "spent": spent,
            "latency": self.latency,
        }
