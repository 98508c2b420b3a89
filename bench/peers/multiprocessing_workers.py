"""Worker processes with queues, as reward managers often have them: one blocking client each, one queue of questions,
one of results, and a cache by a hash of the response in the program, which also keeps equal ones from being sent twice.

Nothing restarts a worker, and what it held is known to nobody: the program gives up when no result has come for a
while. (The original of the design then scores what is missing as 0.)
"""

import hashlib
import multiprocessing
import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai

from bench.peers import questions
from bench.peers.peer import Peer
from bench.peers.questions import Question

#: Seconds without any result after which it gives up: above the longest call.
QUIET_S = questions.CALL_S + 10


def work(url: str, waiting: Any, results: Any) -> None:
    client = questions.make_client(url)
    while (given := waiting.get()) is not None:
        key, messages = given
        try:
            results.put((key, questions.ask(client, messages)))
        except openai.APIError:
            results.put((key, None))


class MultiprocessingWorkers(Peer):
    @property
    def given(self) -> str:
        return f"{self.place.in_flight} processes"

    @contextmanager
    def running(self) -> Iterator[None]:
        context = multiprocessing.get_context("fork")  # where importing everything once is enough
        self._waiting, self._results = context.Queue(), context.Queue()
        self._cache: dict[str, float] = {}
        arguments = (self.place.api_url, self._waiting, self._results)
        self._workers = [context.Process(target=work, args=arguments, daemon=True) for _ in range(self.place.in_flight)]
        for worker in self._workers:
            worker.start()
        try:
            yield
        finally:
            for worker in self._workers:
                worker.terminate()  # a dead one may have died with a queue's lock: they are not asked to stop
            for worker in self._workers:
                worker.join()
            for each in (self._waiting, self._results):
                each.cancel_join_thread()

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        deadline = time.monotonic() + patience_s
        keys = [hashlib.sha256(question.item["response"].encode()).hexdigest() for question in asked]
        unknown = {key: question for key, question in zip(keys, asked, strict=True) if key not in self._cache}
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

    def victims(self) -> list[int]:
        return [worker.pid for worker in self._workers[: self.place.half] if worker.pid]
