"""Adapter for RQ: a job for each question. A worker runs a single job at a time, so each call in flight needs a
process.

Configured with workers that do not fork for each job, which is several times faster; and with retries, and maintenance
every few seconds instead of ten minutes, also by idle workers, so that jobs of a dead worker are requeued.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from openai import OpenAI
from redis import Redis

from bench.peers.adapters.peer import Peer, PeerSetup
from bench.peers.adapters.worker_groups import WorkerGroups
from bench.peers.workload import judge_questions
from bench.peers.workload.judge_questions import Question

QUEUE, GROUPS = "peer", 2


@cache
def _client() -> OpenAI:
    return judge_questions.make_client(os.environ["BENCH_API_URL"])


def judge(messages: Any) -> float:
    return judge_questions.ask(_client(), messages)


def work(number: int) -> None:
    """Run `number` worker processes, forked after the imports."""
    from rq import SimpleWorker
    from rq.worker_pool import WorkerPool

    connection = Redis.from_url(os.environ["BENCH_REDIS_URL"])
    # WorkerPool only calls the worker class: a partial with options works too.
    worker: Any = partial(SimpleWorker, maintenance_interval=10, worker_ttl=25)
    WorkerPool([QUEUE], connection=connection, num_workers=number, worker_class=worker).start(logging_level="ERROR")


class RqJobs(Peer):
    def __init__(self, setup: PeerSetup) -> None:
        super().__init__(setup)
        command = ["-m", "bench.peers.adapters.rq_jobs", str(setup.half)]
        self._groups = WorkerGroups(setup.folder, [command] * GROUPS)
        self._redis = Redis.from_url(
            setup.redis_url, socket_timeout=60
        )  # longer than every wait, unlike the default of redis-py

    @property
    def resources(self) -> str:
        return f"{GROUPS} pools of {self.setup.half} worker processes"

    @contextmanager
    def running(self) -> Iterator[None]:
        from rq import Worker

        with self._redis, self._groups.running(lambda: Worker.count(self._redis) == GROUPS * self.setup.half):
            yield

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        from rq import Queue, Retry

        deadline = time.monotonic() + timeout_s
        queue = Queue(QUEUE, connection=self._redis)
        sent = queue.enqueue_many(
            [
                Queue.prepare_data(judge, args=(question.messages,), timeout=20, retry=Retry(max=3))
                for question in questions
            ]
        )
        return [self._read(job, deadline) for job in sent]

    def _read(self, job: Any, deadline: float) -> float | None:
        """Wait for the result in steps: a failed attempt stores a result too, which the next attempt replaces."""
        while True:
            left_s = deadline - time.monotonic()
            result = job.latest_result(timeout=max(1, min(5, int(left_s)))) if left_s > 0 else job.latest_result()
            if result and result.type == result.Type.SUCCESSFUL:
                verdict: float = result.return_value
                return verdict
            if left_s <= 0:
                return None

    def kill_targets(self) -> list[int]:
        return [self._groups.first()]


if __name__ == "__main__":
    # Import the module by its name, under which jobs refer to its functions.
    from bench.peers.adapters.rq_jobs import work as work_by_name

    work_by_name(int(sys.argv[1]))
