"""Counters of the calls of the development API, exact and in bounded memory."""

import time
from collections import Counter, deque
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

#: Maximum call times that are kept for the peaks; older times are dropped.
MAX_TIMES = 1_000_000
#: Maximum different bodies and model names that are distinguished.
MAX_BODIES = 1_000_000
MAX_MODELS = 1_000


class Call:
    """Counting of one call, from its arrival until its result is known."""

    def __init__(self, counts: "Counts", arrived_s: float) -> None:
        self._counts = counts
        self._is_open = True
        self.arrived_s = arrived_s

    def accept(self, now_s: float) -> None:
        self._counts.accepted.append(now_s)
        self._counts.accepted_calls += 1

    def name(self, model: str, body: bytes) -> None:
        counts = self._counts
        if model not in counts.by_model and len(counts.by_model) >= MAX_MODELS:
            model = "(other)"
        counts.by_model[model] += 1
        if len(counts.bodies) < MAX_BODIES:
            counts.bodies.add(int.from_bytes(blake2b(body, digest_size=8).digest()))

    def meet(self, fate: str) -> None:
        self._counts.by_fate[fate] += 1

    def use(self, prompt_tokens: int, completion_tokens: int) -> None:
        self._counts.prompt_tokens += prompt_tokens
        self._counts.completion_tokens += completion_tokens

    def settle(self, status: str) -> None:
        """Count the result. Only the first result counts: a reply may be cut off after it was counted."""
        if self._is_open:
            self._is_open = False
            self._counts.in_flight -= 1
            self._counts.by_status[status] += 1


class Counts:
    """Counts since the last reset. Calls from before the reset continue to count in their original object."""

    def __init__(self) -> None:
        self.started_s = time.monotonic()
        self.calls = 0
        self.accepted_calls = 0
        self.in_flight = 0
        self.peak_in_flight = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.by_status: Counter[str] = Counter()
        self.by_model: Counter[str] = Counter()
        self.by_fate: Counter[str] = Counter()
        self.bodies: set[int] = set()
        self.arrived: deque[float] = deque(maxlen=MAX_TIMES)
        self.accepted: deque[float] = deque(maxlen=MAX_TIMES)

    def arrive(self) -> Call:
        now_s = time.monotonic()
        self.calls += 1
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        self.arrived.append(now_s)
        return Call(self, now_s)

    def as_json(self, windows_s: Iterable[float] = (), times: int = 0) -> dict[str, Any]:
        """Return the counts as JSON. `times`: number of latest arrivals to list, in seconds since the start."""
        document: dict[str, Any] = {
            "calls": self.calls,
            "accepted": self.accepted_calls,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "by_status": dict(self.by_status),
            "by_fate": dict(self.by_fate),
            "by_model": dict(self.by_model),
            "distinct_bodies": len(self.bodies),
            "distinct_bodies_complete": len(self.bodies) < MAX_BODIES,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "counted_s": round(time.monotonic() - self.started_s, 3),
            "peaks": [
                {"window_s": window_s, "calls": peak(self.arrived, window_s), "accepted": peak(self.accepted, window_s)}
                for window_s in windows_s
            ],
        }
        if times:
            document["times_s"] = [round(at_s - self.started_s, 6) for at_s in list(self.arrived)[-times:]]
        return document


def peak(times: Iterable[float], window_s: float) -> int:
    """Return the maximum number of the ascending times within any half-open window of this length."""
    most, window = 0, deque[float]()
    for time_s in times:
        window.append(time_s)
        while window[0] <= time_s - window_s:
            window.popleft()
        most = max(most, len(window))
    return most
