"""Dramatiq: a message for each question, its result read from Redis.

Set up with a heartbeat timeout just above the longest call, instead of a minute, and with maintenance at every
twentieth command instead of every thousandth, so that a dead worker's messages come back also when little goes on; and
with idle workers that look for messages every 100 ms, not every second.
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

from bench.peers import questions
from bench.peers.peer import Peer, Place
from bench.peers.questions import Question
from bench.peers.worker_groups import WorkerGroups

GROUPS = 2
URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:1/0")


@cache
def _client() -> OpenAI:
    return questions.make_client(os.environ["BENCH_API_URL"])


def _judge(messages: Any) -> float:
    return questions.ask(_client(), messages)


broker: Any = RedisBroker(url=URL, heartbeat_timeout=int(1000 * questions.CALL_S) + 5000, maintenance_chance=50_000)
# A result is waited for as long as its reader likes: not 5 seconds, redis-py's default.
broker.add_middleware(Results(backend=RedisBackend(client=Redis.from_url(URL, socket_timeout=None))))
judge: Any = dramatiq.actor(_judge, broker=broker, actor_name="judge", queue_name="peer", store_results=True)


class DramatiqActors(Peer):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        command = [
            "-m",
            "dramatiq",
            "bench.peers.dramatiq_actors:broker",
            "--processes",
            "1",
            "--threads",
            str(place.half),
        ]
        self._groups = WorkerGroups(place.folder, [command] * GROUPS, dramatiq_worker_timeout="100")

    @property
    def given(self) -> str:
        return f"{GROUPS} workers of {self.place.half} threads"

    @contextmanager
    def running(self) -> Iterator[None]:
        with (
            Redis.from_url(self.place.redis_url) as redis,
            self._groups.running(lambda: redis.zcard("dramatiq:__heartbeats__") >= GROUPS),
        ):
            yield

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        deadline = time.monotonic() + patience_s
        sent = [judge.send(question.messages) for question in asked]
        return [self._read(message, deadline) for message in sent]

    def _read(self, message: Any, deadline: float) -> float | None:
        try:
            left_ms = max(1, int(1000 * (deadline - time.monotonic())))
            verdict: float = message.get_result(backend=broker.get_results_backend(), block=True, timeout=left_ms)
        except ResultTimeout:
            return None
        return verdict

    def victims(self) -> list[int]:
        return [self._groups.first()]
