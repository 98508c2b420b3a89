"""Rate limiter of the development API: limits calls and tokens in a sliding window, and calls in flight."""

import math
from collections import deque
from dataclasses import dataclass

from workers.development_api.knobs import Knobs


@dataclass(frozen=True, slots=True)
class Refused:
    message: str
    wait_s: float
    """0: unknown."""


class Window:
    """Sliding-window sum over the last seconds; it never exceeds its limit."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self.sum = 0

    def wait_s(self, now_s: float, amount: int, limit: int, window_s: float) -> float:
        """Return the seconds until `amount` fits; 0: it fits now. An amount above the limit fits an empty window."""
        while self._entries and self._entries[0][0] <= now_s - window_s:
            self.sum -= self._entries.popleft()[1]
        missing = self.sum + amount - limit
        if missing <= 0 or not self._entries:
            return 0.0
        for at_s, entry in self._entries:
            missing -= entry
            if missing <= 0:
                return max(at_s + window_s - now_s, 1e-3)
        return window_s

    def add(self, now_s: float, amount: int) -> None:
        self._entries.append((now_s, amount))
        self.sum += amount


class Limits:
    def __init__(self) -> None:
        self._calls, self._tokens = Window(), Window()
        self.in_flight = 0

    def enter(self, knobs: Knobs, now_s: float, tokens: int) -> Refused | None:
        """Accept a call, which must `leave` afterwards, or return the reason of the refusal."""
        share = knobs.window_s / 60
        if knobs.concurrency and self.in_flight >= knobs.concurrency:
            return Refused(f"Too many requests in flight: limit {knobs.concurrency}.", 0.0)
        if knobs.rpm:
            limit = max(1, int(knobs.rpm * share))
            if wait_s := self._calls.wait_s(now_s, 1, limit, knobs.window_s):
                return Refused(_sentence("requests", knobs.rpm, self._calls.sum, wait_s), wait_s)
        if knobs.tpm:
            limit = max(1, int(knobs.tpm * share))
            if wait_s := self._tokens.wait_s(now_s, tokens, limit, knobs.window_s):
                return Refused(_sentence("tokens", knobs.tpm, self._tokens.sum, wait_s), wait_s)
            self._tokens.add(now_s, tokens)
        if knobs.rpm:
            self._calls.add(now_s, 1)
        self.in_flight += 1
        return None

    def leave(self) -> None:
        self.in_flight -= 1

    def headers(self, knobs: Knobs, now_s: float) -> dict[str, str]:
        """Return OpenAI's rate-limit headers for the limits that are set."""
        headers = {}
        for name, window, per_minute in (("requests", self._calls, knobs.rpm), ("tokens", self._tokens, knobs.tpm)):
            if per_minute:
                limit = max(1, int(per_minute * knobs.window_s / 60))
                wait_s = window.wait_s(now_s, 1, limit, knobs.window_s)
                headers[f"x-ratelimit-limit-{name}"] = str(per_minute)
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, limit - window.sum))
                headers[f"x-ratelimit-reset-{name}"] = f"{math.ceil(wait_s * 1000)}ms"
        return headers


def _sentence(unit: str, limit: int, used: int, wait_s: float) -> str:
    return (
        f"Rate limit reached for {unit} per min: Limit {limit}, Used {used}. Please try again in {wait_s * 1000:.0f}ms."
    )


def retry_headers(wait_s: float) -> dict[str, str]:
    if wait_s <= 0:
        return {}
    return {"retry-after": str(math.ceil(wait_s)), "retry-after-ms": str(math.ceil(wait_s * 1000))}
