"""RQ: a job for each question. A worker runs one at a time, so calls in flight are worker processes.

Set up with workers that do not fork for each job, which is several times faster, and with retries and maintenance every
few seconds instead of ten minutes, also by idle workers, so that what a dead worker held comes back at all.
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

from bench.peers import questions
from bench.peers.peer import Peer, Place
from bench.peers.questions import Question
from bench.peers.worker_groups import WorkerGroups

QUEUE, GROUPS = "peer", 2


@cache
def _client() -> OpenAI:
    return questions.make_client(os.environ["BENCH_API_URL"])


def judge(messages: Any) -> float:
    return questions.ask(_client(), messages)


def work(number: int) -> None:
    """So many worker processes, forked from one that has imported everything."""
    from rq import SimpleWorker
    from rq.worker_pool import WorkerPool

    connection = Redis.from_url(os.environ["BENCH_REDIS_URL"])
    # It hands a class on and calls it: one with its options filled in does as well.
    worker: Any = partial(SimpleWorker, maintenance_interval=10, worker_ttl=25)
    WorkerPool([QUEUE], connection=connection, num_workers=number, worker_class=worker).start(logging_level="ERROR")


class RqJobs(Peer):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        command = ["-m", "bench.peers.rq_jobs", str(place.half)]
        self._groups = WorkerGroups(place.folder, [command] * GROUPS)
        self._redis = Redis.from_url(place.redis_url, socket_timeout=60)  # above every wait, unlike redis-py's default

    @property
    def given(self) -> str:
        return f"{GROUPS} pools of {self.place.half} worker processes"

    @contextmanager
    def running(self) -> Iterator[None]:
        from rq import Worker

        with self._redis, self._groups.running(lambda: Worker.count(self._redis) == GROUPS * self.place.half):
            yield

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        from rq import Queue, Retry

        deadline = time.monotonic() + patience_s
        queue = Queue(QUEUE, connection=self._redis)
        sent = queue.enqueue_many(
            [Queue.prepare_data(judge, args=(question.messages,), timeout=20, retry=Retry(max=3)) for question in asked]
        )
        return [self._read(job, deadline) for job in sent]

    def _read(self, job: Any, deadline: float) -> float | None:
        """Waits in steps: a try that failed leaves a result, and the next try another."""
        while True:
            left_s = deadline - time.monotonic()
            result = job.latest_result(timeout=max(1, min(5, int(left_s)))) if left_s > 0 else job.latest_result()
            if result and result.type == result.Type.SUCCESSFUL:
                verdict: float = result.return_value
                return verdict
            if left_s <= 0:
                return None

    def victims(self) -> list[int]:
        return [self._groups.first()]


if __name__ == "__main__":
    # By its own name, which is what jobs call it by.
    from bench.peers.rq_jobs import work as work_by_name

    work_by_name(int(sys.argv[1]))
