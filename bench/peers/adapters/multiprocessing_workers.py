"""Adapter for worker processes with queues, a common design of reward managers.

Each worker has a blocking client; there is a queue of questions and a queue of results. The main process has a cache by
a hash of the response, which also deduplicates equal questions. Dead workers are not restarted, and the questions that
they held are lost: the main process stops waiting when no result has arrived for a while. (The original design then
scores missing items as 0.)
"""

import hashlib
import multiprocessing
import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai

from bench.peers.adapters.peer import Peer
from bench.peers.workload import judge_questions
from bench.peers.workload.judge_questions import Question

#: Seconds without a result after which the main process stops waiting: more than the longest call.
QUIET_S = judge_questions.CALL_S + 10


def work(url: str, waiting: Any, results: Any) -> None:
    client = judge_questions.make_client(url)
    while (request := waiting.get()) is not None:
        key, messages = request
        try:
            results.put((key, judge_questions.ask(client, messages)))
        except openai.APIError:
            results.put((key, None))


class MultiprocessingWorkers(Peer):
    @property
    def resources(self) -> str:
        return f"{self.setup.in_flight} processes"

    @contextmanager
    def running(self) -> Iterator[None]:
        context = multiprocessing.get_context("fork")  # fork: imports happen once
        self._waiting, self._results = context.Queue(), context.Queue()
        self._cache: dict[str, float] = {}
        arguments = (self.setup.api_url, self._waiting, self._results)
        self._workers = [context.Process(target=work, args=arguments, daemon=True) for _ in range(self.setup.in_flight)]
        for worker in self._workers:
            worker.start()
        try:
            yield
        finally:
            for worker in self._workers:
                worker.terminate()  # no orderly stop: a killed worker may hold the lock of a queue
            for worker in self._workers:
                worker.join()
            for each in (self._waiting, self._results):
                each.cancel_join_thread()

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        keys = [hashlib.sha256(question.item["response"].encode()).hexdigest() for question in questions]
        unknown = {key: question for key, question in zip(keys, questions, strict=True) if key not in self._cache}
        for key, question in unknown.items():
            self._waiting.put((key, question.messages))
        for _ in unknown:
            try:
                key, verdict = self._results.get(timeout=max(0.01, min(QUIET_S, deadline - time.monotonic())))
            except queue.Empty:
                break
            if verdict is not None:
                self._cache[key] = verdict
        return [self._cache.get(key) for key in keys]

    def kill_targets(self) -> list[int]:
        return [worker.pid for worker in self._workers[: self.setup.half] if worker.pid]
