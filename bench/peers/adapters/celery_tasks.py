"""Adapter for plain Celery: a task for each question, with results in Redis.

Configured against loss as its manual advises: late acknowledgement, a prefetch of a single message, and a visibility
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

from bench.peers.adapters.peer import Peer, PeerSetup
from bench.peers.adapters.worker_groups import WorkerGroups
from bench.peers.workload import judge_questions
from bench.peers.workload.judge_questions import Question

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
        "visibility_timeout": judge_questions.CALL_S + 10,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
    },
)


@cache
def _client() -> OpenAI:
    return judge_questions.make_client(os.environ["BENCH_API_URL"])


@app.task(name="peer.judge")
def judge(messages: Any) -> float:
    return judge_questions.ask(_client(), messages)


class CeleryTasks(Peer):
    def __init__(self, setup: PeerSetup) -> None:
        super().__init__(setup)
        worker = ["-A", "bench.peers.adapters.celery_tasks", "worker", "-P", "threads", "-c", str(setup.half)]
        command = ["-m", "celery", *worker, "-l", "ERROR", "--without-gossip", "--without-mingle", "-n"]
        self._groups = WorkerGroups(setup.folder, [[*command, f"peer{at}@bench"] for at in range(GROUPS)])

    @property
    def resources(self) -> str:
        return f"{GROUPS} workers of {self.setup.half} threads"

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            with self._groups.running(lambda: len(app.control.ping(timeout=1.0) or ()) == GROUPS):
                yield
        finally:
            app.close()

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        sent: Any = group(judge.s(question.messages) for question in questions).apply_async()
        return [self._read(result, deadline) for result in sent.results]

    def _read(self, result: Any, deadline: float) -> float | None:
        try:
            verdict: float = result.get(timeout=max(0.01, deadline - time.monotonic()))
        except NotInTime:
            return None
        return verdict

    def kill_targets(self) -> list[int]:
        return [self._groups.first()]
