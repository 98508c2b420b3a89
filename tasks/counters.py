"""Metrics counters of the cluster: monotonic since the state Redis was set up, over every process and job, including
processes and jobs that do not exist any more.

They are fields of a single hash, named `<name>|<label>|...`; fields of a histogram end in the upper bound of their
bucket, or in `sum` (in millionths). Lua scripts count an event in the same atomic step as the event itself
(`totals.count`); events outside of scripts are added here. Labels have bounded cardinality: kinds, pools, routes,
profiles of the settings; never a job.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import cast

from redis import Redis

from config import keys

MILLION = 1_000_000

#: Upper bounds in seconds of each histogram's buckets; the last bucket is unbounded.
BUCKETS: dict[str, tuple[float, ...]] = {
    "job_s": (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
    "api_s": (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160),
    "http_s": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120),
}
UNBOUNDED = "+Inf"


def bucket(histogram: str, seconds: float) -> str:
    """Return the upper bound of the bucket that contains the value."""
    bounds = BUCKETS[histogram]
    at = bisect_left(bounds, seconds)
    return f"{bounds[at]:g}" if at < len(bounds) else UNBOUNDED


class Totals:
    def __init__(self, counted: Mapping[str, str]) -> None:
        self._counted = {tuple(name.split("|")): int(value) for name, value in counted.items()}

    @classmethod
    def read(cls, state: Redis) -> "Totals":
        return cls(cast(dict[str, str], state.hgetall(keys.totals())))

    def of(self, name: str) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield the labels and the value of each counter of this name."""
        for (first, *labels), value in sorted(self._counted.items()):
            if first == name:
                yield tuple(labels), value

    def histogram(self, name: str) -> Iterator[tuple[tuple[str, ...], list[tuple[str, float]], float]]:
        """Yield the labels, the cumulative buckets and the sum in seconds of each histogram of this name."""
        counts: dict[tuple[str, ...], dict[str, int]] = {}
        for (*labels, bound), value in self.of(name):
            counts.setdefault(tuple(labels), {})[bound] = value
        for key, found in counts.items():
            cumulated, total = [], 0
            for bound in (*(f"{each:g}" for each in BUCKETS[name]), UNBOUNDED):
                total += found.get(bound, 0)
                cumulated.append((bound, float(total)))
            yield key, cumulated, found.get("sum", 0) / MILLION


def add(state: Redis, counts: Mapping[tuple[str, ...], int]) -> None:
    """Add to counters, for events that happen outside of Lua scripts."""
    pipeline = state.pipeline(transaction=False)
    for name, number in counts.items():
        pipeline.hincrby(keys.totals(), "|".join(name), number)
    pipeline.execute()
