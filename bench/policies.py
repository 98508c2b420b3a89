"""Policy servers against their targets: `python -m bench.policies`. Takes about five minutes.

Development policies that infer for 50 ms each, and the light environment, so that two cores suffice for eight of them.
Jobs of 120 episodes for each server, their ends included, when servers run out of episodes; and one call through the
pool beside the same call through openpi-client.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median
from typing import Any

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from bench.spread import Spread, line, repeat
from tasks.episodes.model import Episode, EpisodeSpec
from workers.development_policy.handle import Handle, running, several
from workers.environments.simulators import Simulators
from workers.policies.address import Address
from workers.policies.episodes import EpisodeRunner
from workers.policies.pool import Pool

LATENCY_MS, EPISODES = 50, 120
#: Repetitions by number of servers.
TIMES = {1: 1, 2: 1, 4: 2, 8: 3}
TARGETS = {2: 1.95, 4: 3.8, 8: 7.5}


def job(episodes: int) -> list[EpisodeSpec]:
    """Half of them with the task's own instruction, half with another's, so that episodes are short and long."""
    wrong = "reach the {} target".format
    return [
        EpisodeSpec(
            seed=n, task_id=n % 4, instruction=wrong(("green", "blue", "red", "red")[n % 4]) if n // 4 % 2 else ""
        )
        for n in range(episodes)
    ]


class Stand:
    def __init__(self, servers: list[Handle]) -> None:
        self._servers = servers
        self.shares: list[float] = []
        """How busy the least busy server was, by run."""

    def rate(self) -> float:
        """Inferences a second, from the start of a job to its end."""
        number = len(self._servers)
        with closing(Pool([Address(server.url) for server in self._servers])) as pool:
            runner = EpisodeRunner(pool, Simulators(0, 60.0))
            for _ in runner.run(job(4 * number)):  # connected and warm
                pass
            for server in self._servers:
                server.reset()
            started = time.perf_counter()
            episodes = [result for _, result in runner.run(job(EPISODES * number))]
            took_s = time.perf_counter() - started
        self.shares.append(min(server.counts()["busy_s"] for server in self._servers) / took_s)
        return sum(len(each.inference_ms) for each in episodes if isinstance(each, Episode)) / took_s


def scaling() -> None:
    alone: Spread | None = None
    for number in (1, 2, 4, 8):
        with several(number, latency_ms=LATENCY_MS) as servers:
            stand = Stand(servers)
            rate = repeat(stand.rate, TIMES[number])
        shares = Spread(median(stand.shares), min(stand.shares), max(stand.shares))
        print(f"  {number} servers: {rate} inferences/s; least busy server {shares}")
        alone = alone or rate
        if number in TARGETS:
            line(
                f"{LATENCY_MS} ms inference, 1 -> {number} servers", rate.middle / alone.middle, f">= {TARGETS[number]}"
            )
        line(f"{number} servers, busy share of the least busy", shares.middle, ">= 0.95")


def observation() -> dict[str, Any]:
    """As large as LIBERO's."""
    chance = np.random.default_rng(0)
    picture = chance.integers(0, 255, (224, 224, 3), np.uint8)
    return {
        "observation/state": np.zeros(2, np.float32),
        "observation/targets": np.ones((4, 2), np.float32),
        "observation/image": picture,
        "observation/wrist_image": picture,
        "prompt": "reach the red target",
    }


@contextmanager
def both(latency_ms: float) -> Iterator[tuple[Pool, WebsocketClientPolicy]]:
    with (
        running(latency_ms=latency_ms) as ours,
        running(latency_ms=latency_ms) as theirs,
        closing(Pool([Address(ours.url)])) as pool,
    ):
        yield pool, WebsocketClientPolicy(theirs.url)


def call_ratio(latency_ms: float, calls: int) -> None:
    sent = observation()
    with both(latency_ms) as (pool, reference):

        def one(infer: Any) -> float:
            started = time.perf_counter()
            infer(sent)
            return 1000 * (time.perf_counter() - started)

        def through_pool(seen: dict[str, Any]) -> None:
            pool.infer(seen, 10.0)

        means: list[tuple[float, float]] = []

        def ratio() -> float:
            times = [(one(through_pool), one(reference.infer)) for _ in range(calls)]  # in turn: noise meets both
            means.append((median(ours for ours, _ in times), median(theirs for _, theirs in times)))
            return means[-1][0] / means[-1][1]

        ratio()
        found = repeat(ratio, 5)
    print(f"  {latency_ms:.0f} ms inference: ours {means[-1][0]:.2f} ms, openpi-client {means[-1][1]:.2f} ms, {found}")
    line(f"one call through the pool, {latency_ms:.0f} ms inference, over openpi-client", found.middle, "<= 1.1")


def main() -> None:
    call_ratio(LATENCY_MS, 20)
    call_ratio(0, 100)
    scaling()


if __name__ == "__main__":
    main()
