"""How fast a peer is, and what it takes for that."""

from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import psutil

from bench.peers import usage
from bench.peers.peer import Place
from bench.peers.program import Program, program
from bench.peers.witness import Witness

#: Questions in a warm-up, for each call in flight.
WARM = 4
#: Seconds a run may take.
PATIENCE_S = 300.0


@dataclass(slots=True)
class Speed:
    """Of all rounds of a peer."""

    given: str = ""
    items_per_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """For 1,000 items, of all its processes."""
    redis_cpu_s: list[float] = field(default_factory=list)
    """Of Redis, for 1,000 items."""
    calls: list[float] = field(default_factory=list)
    """For each question that differs; rows computed for each that differs."""
    single_ms: list[float] = field(default_factory=list)
    memory_mb: float = 0.0
    answers: dict[int, list[Any]] = field(default_factory=dict)
    """Of each round, to compare them."""

    @property
    def p50_ms(self) -> float:
        return median(self.single_ms)

    @property
    def p95_ms(self) -> float:
        return quantiles(self.single_ms, n=20, method="inclusive")[-1]


@dataclass(frozen=True, slots=True)
class Course:
    """What all peers run on."""

    place: Place
    witness: Witness
    redis_pid: int
    number: int
    repeated_share: float
    singles: int
    """Questions asked in a round one by one."""

    def run_round(self, name: str, speed: Speed, at: int) -> None:
        """Round number `at`, which asks the same of all peers, and other questions than the rounds before.

        The peer's processes are started for it, and ended: another's idle workers would take their share."""
        first = 1 + at * 10 * self.number
        with program(name, self.place) as peer:
            speed.given = peer.given
            self._warm(peer, speed, first + 4 * self.number)
            self._measure(peer, speed, first)
            for single in range(self.singles):
                peer.prepare(first + 2 * self.number + single, 1)
                speed.single_ms.append(1000 * peer.answer()[0])

    def _warm(self, peer: Program, speed: Speed, first: int) -> None:
        """Every worker has its connections, or its model. Here the memory is looked at, as looking costs time."""
        peer.prepare(first, WARM * self.place.in_flight)
        with usage.peak_memory(peer.pid) as peak:
            peer.answer(PATIENCE_S)
        speed.memory_mb = max(speed.memory_mb, peak.mb)

    def _measure(self, peer: Program, speed: Speed, first: int) -> None:
        peer.prepare(first, self.number, self.repeated_share)
        self.witness.reset()
        redis = psutil.Process(self.redis_pid)
        before_s, redis_before_s = usage.cpu_s(peer.pid), sum(redis.cpu_times()[:2])
        seconds, speed.answers[first] = peer.answer(PATIENCE_S)
        thousands = self.number / 1000
        speed.cpu_s.append((usage.cpu_s(peer.pid) - before_s) / thousands)
        speed.redis_cpu_s.append((sum(redis.cpu_times()[:2]) - redis_before_s) / thousands)
        speed.items_per_s.append(self.number / seconds)
        made, distinct = self.witness.count_made()
        speed.calls.append(made / distinct)
