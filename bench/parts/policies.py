"""Benchmark of policy servers: scaling over 1, 2, 4 and 8 servers, and the latency of a call.

`python -m bench policies`. Takes about five minutes. The servers are development policies that sleep 50 ms for an
inference, and the environment is the light reach task, so that two cores suffice for eight servers. Each score job has
120 episodes for each server, and a device slot for each server; it is timed from submit to end, which includes the
phase in which servers run out of episodes. A call through the connection pool is compared with the same call through
openpi-client.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median
from typing import Any

import numpy as np
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from bench.processes.stack import Stack, running_stack
from bench.report.figures import brief, line, note, repeat
from tasks.measurement.spread import Spread, spread_of
from workers.development_policy.control import Handle, running, several
from workers.policies.address import Address
from workers.policies.pool import Pool

LATENCY_MS, EPISODES = 50, 120
#: Repetitions, by the number of servers.
TIMES = {1: 1, 2: 1, 4: 2, 8: 3}
TARGETS = {2: 1.95, 4: 3.8, 8: 7.5}


def items(number: int, first_seed: int) -> list[dict[str, Any]]:
    """Return score items: half with the task's own instruction, half with a wrong one, for short and long episodes."""
    wrong = ("green", "blue", "red", "red")
    return [
        {
            "response": f"reach the {wrong[n % 4]} target" if n // 4 % 2 else "",
            "task": {"task_id": n % 4, "seed": first_seed + n},
        }
        for n in range(number)
    ]


class PolicyScoring:
    """Score jobs on a stack whose device slots have a policy server each."""

    def __init__(self, stack: Stack, servers: list[Handle]) -> None:
        self._stack, self._servers = stack, servers
        self._seed = 0
        self.shares: list[float] = []
        """For each run, the busy share of the least busy server."""

    def rate(self) -> float:
        """Return the inferences per second of a job, from submit to end."""
        self._run(4)  # connect and warm up
        for server in self._servers:
            server.reset()
        inferences, took_s = self._run(brief(EPISODES, 8))
        self.shares.append(min(server.counts()["busy_s"] for server in self._servers) / took_s)
        return inferences / took_s

    def _run(self, episodes: int) -> tuple[int, float]:
        number = episodes * len(self._servers)
        spec = {"scorers": [{"name": "policy"}]}
        timed = self._stack.time("score", items(number, self._seed), spec=spec, cache="off")
        self._seed += number
        inferences = sum(each["inferences"] for row in timed.rows for each in row["value"]["episodes"])
        return inferences, timed.seconds


def wait_for_connections(stack: Stack, servers: int) -> None:
    def connected() -> int:
        workers = stack.core.registry.workers()
        return sum(server.connected for worker in workers for server in worker.policies)

    while connected() < servers:
        time.sleep(0.1)
    stack.core.dispatcher.forget_fleet()


def scaling() -> None:
    alone: Spread | None = None
    for number in (1, 2, 4, 8)[: brief(4, 2)]:
        with several(number, latency_ms=LATENCY_MS) as servers, running_stack() as stack:
            urls = [server.url for server in servers]
            with stack.workers(number, cpu=1, policies=urls):
                scoring = PolicyScoring(stack, servers)
                wait_for_connections(stack, number)
                rate = repeat(scoring.rate, brief(TIMES[number]))
        shares = spread_of(scoring.shares)
        note(f"{number} servers: {rate} inferences/s; least busy server {shares}")
        alone = alone or rate
        if number in TARGETS:
            line(f"{LATENCY_MS} ms inference, 1 -> {number} servers", rate.over(alone), f">= {TARGETS[number]}")
        line(f"{number} servers, busy share of the least busy", shares, ">= 0.95")


def observation() -> dict[str, Any]:
    """Return an observation of the same size as LIBERO's."""
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
def both_clients(latency_ms: float) -> Iterator[tuple[Pool, WebsocketClientPolicy]]:
    """Start two equal policy servers, and connect our pool to the first and openpi-client to the second."""
    with (
        running(latency_ms=latency_ms) as ours,
        running(latency_ms=latency_ms) as theirs,
        closing(Pool([Address(ours.url)])) as pool,
    ):
        yield pool, WebsocketClientPolicy(theirs.url)


def call_ratio(latency_ms: float, calls: int) -> None:
    sent = observation()
    with both_clients(latency_ms) as (pool, reference):

        def call_ms(infer: Any) -> float:
            started = time.perf_counter()
            infer(sent)
            return 1000 * (time.perf_counter() - started)

        def through_pool(seen: dict[str, Any]) -> None:
            pool.infer(seen, 10.0)

        means: list[tuple[float, float]] = []

        def ratio() -> float:
            times = [
                (call_ms(through_pool), call_ms(reference.infer)) for _ in range(calls)
            ]  # alternating: other load slows both
            means.append((median(ours for ours, _ in times), median(theirs for _, theirs in times)))
            return means[-1][0] / means[-1][1]

        ratio()
        found = repeat(ratio, brief(5))
    note(f"{latency_ms:.0f} ms inference: ours {means[-1][0]:.2f} ms, openpi-client {means[-1][1]:.2f} ms, {found}")
    line(f"a call through the pool, {latency_ms:.0f} ms inference, over openpi-client", found, "<= 1.1")


def main() -> None:
    call_ratio(LATENCY_MS, 20)
    call_ratio(0, 100)
    scaling()


if __name__ == "__main__":
    main()
