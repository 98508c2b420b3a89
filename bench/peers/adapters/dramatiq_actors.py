"""Adapter for Dramatiq: a message for each question, with results in Redis.

Configured with a heartbeat timeout just above the longest call instead of a minute; with maintenance at every twentieth
command instead of every thousandth, so that messages of a dead worker are requeued even at low load; and with idle
workers that poll every 100 ms instead of every second.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results, ResultTimeout
from dramatiq.results.backends import RedisBackend
from openai import OpenAI
from redis import Redis

from bench.peers.adapters.peer import Peer, PeerSetup
from bench.peers.adapters.worker_groups import WorkerGroups
from bench.peers.workload import judge_questions
from bench.peers.workload.judge_questions import Question

GROUPS = 2
URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:1/0")


@cache
def _client() -> OpenAI:
    return judge_questions.make_client(os.environ["BENCH_API_URL"])


def _judge(messages: Any) -> float:
    return judge_questions.ask(_client(), messages)


broker: Any = RedisBroker(
    url=URL, heartbeat_timeout=int(1000 * judge_questions.CALL_S) + 5000, maintenance_chance=50_000
)
# Wait for a result without the socket timeout of redis-py (5 seconds by default).
broker.add_middleware(Results(backend=RedisBackend(client=Redis.from_url(URL, socket_timeout=None))))
judge: Any = dramatiq.actor(_judge, broker=broker, actor_name="judge", queue_name="peer", store_results=True)


class DramatiqActors(Peer):
    def __init__(self, setup: PeerSetup) -> None:
        super().__init__(setup)
        command = [
            "-m",
            "dramatiq",
            "bench.peers.adapters.dramatiq_actors:broker",
            "--processes",
            "1",
            "--threads",
            str(setup.half),
        ]
        self._groups = WorkerGroups(setup.folder, [command] * GROUPS, dramatiq_worker_timeout="100")

    @property
    def resources(self) -> str:
        return f"{GROUPS} workers of {self.setup.half} threads"

    @contextmanager
    def running(self) -> Iterator[None]:
        with (
            Redis.from_url(self.setup.redis_url) as redis,
            self._groups.running(lambda: redis.zcard("dramatiq:__heartbeats__") >= GROUPS),
        ):
            yield

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        sent = [judge.send(question.messages) for question in questions]
        return [self._read(message, deadline) for message in sent]

    def _read(self, message: Any, deadline: float) -> float | None:
        try:
            left_ms = max(1, int(1000 * (deadline - time.monotonic())))
            verdict: float = message.get_result(backend=broker.get_results_backend(), block=True, timeout=left_ms)
        except ResultTimeout:
            return None
        return verdict

    def kill_targets(self) -> list[int]:
        return [self._groups.first()]
