"""Policy servers against their targets: `python -m bench.policies`. Takes about five minutes.

Development policies that infer for 50 ms each, and the light environment, so that two cores suffice for eight of them.
Score jobs of 120 episodes for each server on as many device slots, from submit to end, when servers run out of
episodes; and one call through the pool beside the same call through openpi-client.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median
from typing import Any

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from bench.spread import Spread, brief, line, note, repeat, spread
from bench.stack import Stack, stack
from tasks.jobs.model import JobRequest
from workers.development_policy.handle import Handle, running, several
from workers.policies.address import Address
from workers.policies.pool import Pool

LATENCY_MS, EPISODES = 50, 120
#: Repetitions by number of servers.
TIMES = {1: 1, 2: 1, 4: 2, 8: 3}
TARGETS = {2: 1.95, 4: 3.8, 8: 7.5}


def items(number: int, first_seed: int) -> list[dict[str, Any]]:
    """Half of them with the task's own instruction, half with another's, so that episodes are short and long."""
    wrong = ("green", "blue", "red", "red")
    return [
        {
            "response": f"reach the {wrong[n % 4]} target" if n // 4 % 2 else "",
            "task": {"task_id": n % 4, "seed": first_seed + n},
        }
        for n in range(number)
    ]


class Stand:
    """A job core whose device slots have a policy server each."""

    def __init__(self, bench: Stack, servers: list[Handle]) -> None:
        self._bench, self._servers = bench, servers
        self._seed = 0
        self.shares: list[float] = []
        """How busy the least busy server was, by run."""

    def rate(self) -> float:
        """Inferences a second, from the submit of a job to its end."""
        self._run(4)  # connected and warm
        for server in self._servers:
            server.reset()
        inferences, took_s = self._run(brief(EPISODES, 8))
        self.shares.append(min(server.counts()["busy_s"] for server in self._servers) / took_s)
        return inferences / took_s

    def _run(self, episodes: int) -> tuple[int, float]:
        number = episodes * len(self._servers)
        core, asked = self._bench.core, items(number, self._seed)
        self._seed += number
        request = JobRequest(kind="score", items=asked, spec={"scorers": [{"name": "policy"}]}, cache="off")
        started = time.perf_counter()
        ended = core.results.wait(core.door.submit(request), 600)
        took_s = time.perf_counter() - started
        assert (ended.state, ended.ok) == ("done", number), ended
        rows = core.results.read(ended)
        return sum(each["inferences"] for row in rows for each in row["value"]["episodes"]), took_s


def wait_for(bench: Stack, servers: int) -> None:
    def connected() -> int:
        workers = bench.core.registry.workers()
        return sum(server.connected for worker in workers for server in worker.policies)

    while connected() < servers:
        time.sleep(0.1)
    bench.core.dispatcher.forget_fleet()


def scaling() -> None:
    alone: Spread | None = None
    for number in (1, 2, 4, 8)[: brief(4, 2)]:
        with several(number, latency_ms=LATENCY_MS) as servers, stack() as bench:
            urls = [server.url for server in servers]
            with bench.workers(number, cpu=1, policies=urls):
                stand = Stand(bench, servers)
                wait_for(bench, number)
                rate = repeat(stand.rate, brief(TIMES[number]))
        shares = spread(stand.shares)
        note(f"{number} servers: {rate} inferences/s; least busy server {shares}")
        alone = alone or rate
        if number in TARGETS:
            line(f"{LATENCY_MS} ms inference, 1 -> {number} servers", rate.over(alone), f">= {TARGETS[number]}")
        line(f"{number} servers, busy share of the least busy", shares, ">= 0.95")


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
        found = repeat(ratio, brief(5))
    note(f"{latency_ms:.0f} ms inference: ours {means[-1][0]:.2f} ms, openpi-client {means[-1][1]:.2f} ms, {found}")
    line(f"one call through the pool, {latency_ms:.0f} ms inference, over openpi-client", found, "<= 1.1")


def main() -> None:
    call_ratio(LATENCY_MS, 20)
    call_ratio(0, 100)
    scaling()


if __name__ == "__main__":
    main()
