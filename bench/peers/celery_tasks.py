"""Bare Celery: a task for each question, its result read from Redis.

Set up with what its manual offers against loss: late acknowledgement, one message per free place, and a visibility
timeout just above the longest call instead of the default of an hour.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from celery import Celery, group
from celery.exceptions import TimeoutError as NotInTime
from openai import OpenAI

from bench.peers import questions
from bench.peers.peer import Peer, Place
from bench.peers.questions import Question
from bench.peers.worker_groups import WorkerGroups

GROUPS = 2
URL = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:1/0")
app = Celery("peer", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": questions.CALL_S + 10,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
    },
)


@cache
def _client() -> OpenAI:
    return questions.make_client(os.environ["BENCH_API_URL"])


@app.task(name="peer.judge")
def judge(messages: Any) -> float:
    return questions.ask(_client(), messages)


class CeleryTasks(Peer):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        command = ["-m", "celery", "-A", "bench.peers.celery_tasks", "worker", "-P", "threads", "-c", str(place.half),
                   "-l", "ERROR", "--without-gossip", "--without-mingle", "-n"]  # fmt: skip
        self._groups = WorkerGroups(place.folder, [[*command, f"peer{at}@bench"] for at in range(GROUPS)])

    @property
    def given(self) -> str:
        return f"{GROUPS} workers of {self.place.half} threads"

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            with self._groups.running(lambda: len(app.control.ping(timeout=1.0) or ()) == GROUPS):
                yield
        finally:
            app.close()

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        deadline = time.monotonic() + patience_s
        sent: Any = group(judge.s(question.messages) for question in asked).apply_async()
        return [self._read(result, deadline) for result in sent.results]

    def _read(self, result: Any, deadline: float) -> float | None:
        try:
            verdict: float = result.get(timeout=max(0.01, deadline - time.monotonic()))
        except NotInTime:
            return None
        return verdict

    def victims(self) -> list[int]:
        return [self._groups.first()]
