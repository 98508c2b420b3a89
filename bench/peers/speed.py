"""Speed test: throughput, latency and resource usage of a peer."""

from dataclasses import dataclass, field
from typing import Any

import psutil

from bench.peers.adapters.peer import PeerSetup
from bench.peers.call_counters import CallCounter
from bench.peers.peer_process import PeerProcess, running_peer
from bench.processes import resource_usage
from tasks.measurement.percentiles import percentiles

#: Questions in the warm-up, for each call in flight.
WARM_UP = 4
#: Timeout of a run in seconds.
TIMEOUT_S = 300.0


@dataclass(slots=True)
class Speed:
    """Measurements of a peer, a value for each round."""

    resources: str = ""
    items_per_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """CPU seconds of the peer's processes per 1,000 items."""
    redis_cpu_s: list[float] = field(default_factory=list)
    """CPU seconds of Redis per 1,000 items."""
    calls: list[float] = field(default_factory=list)
    """Calls (or computed rows) per different question."""
    single_ms: list[float] = field(default_factory=list)
    memory_mb: float = 0.0
    answers: dict[int, list[Any]] = field(default_factory=dict)
    """Answers by the first number of their round, for a comparison between peers."""

    @property
    def p50_ms(self) -> float:
        return percentiles(self.single_ms, 0.5)[0]

    @property
    def p95_ms(self) -> float:
        return percentiles(self.single_ms, 0.95)[0]


@dataclass(frozen=True, slots=True)
class SpeedTest:
    """Speed test with the same workload for every peer."""

    setup: PeerSetup
    counter: CallCounter
    redis_pid: int
    number: int
    repeated_share: float
    singles: int
    """Number of questions in a round that are timed singly."""

    def run_round(self, name: str, speed: Speed, at: int) -> None:
        """Run round `at`, whose questions are the same for every peer and new in each round.

        The peer's processes run during its own rounds only: idle workers of other peers would use CPU."""
        first = 1 + at * 10 * self.number
        with running_peer(name, self.setup) as peer:
            speed.resources = peer.resources
            self._warm_up(peer, speed, first + 4 * self.number)
            self._measure(peer, speed, first)
            for single in range(self.singles):
                peer.prepare(first + 2 * self.number + single, 1)
                speed.single_ms.append(1000 * peer.answer()[0])

    def _warm_up(self, peer: PeerProcess, speed: Speed, first: int) -> None:
        """Warm up connections and models. Memory is sampled here, because sampling would slow a timed run."""
        peer.prepare(first, WARM_UP * self.setup.in_flight)
        with resource_usage.peak_memory(peer.pid) as peak:
            peer.answer(TIMEOUT_S)
        speed.memory_mb = max(speed.memory_mb, peak.mb)

    def _measure(self, peer: PeerProcess, speed: Speed, first: int) -> None:
        peer.prepare(first, self.number, self.repeated_share)
        self.counter.reset()
        redis = psutil.Process(self.redis_pid)
        before_s, redis_before_s = resource_usage.cpu_s(peer.pid), sum(redis.cpu_times()[:2])
        seconds, speed.answers[first] = peer.answer(TIMEOUT_S)
        thousands = self.number / 1000
        speed.cpu_s.append((resource_usage.cpu_s(peer.pid) - before_s) / thousands)
        speed.redis_cpu_s.append((sum(redis.cpu_times()[:2]) - redis_before_s) / thousands)
        speed.items_per_s.append(self.number / seconds)
        made, distinct = self.counter.count_calls()
        speed.calls.append(made / distinct)
