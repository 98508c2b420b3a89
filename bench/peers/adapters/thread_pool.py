"""Adapter for a ThreadPoolExecutor in the peer process itself: each thread has a blocking call."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from bench.peers.adapters.peer import Peer
from bench.peers.workload import judge_questions
from bench.peers.workload.judge_questions import Question


class ThreadPool(Peer):
    @property
    def resources(self) -> str:
        return f"1 process, {self.setup.in_flight} threads"

    @contextmanager
    def running(self) -> Iterator[None]:
        with (
            judge_questions.make_client(self.setup.api_url) as self._client,
            ThreadPoolExecutor(self.setup.in_flight) as self._pool,
        ):
            yield

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        return list(self._pool.map(self._ask, questions, timeout=timeout_s))

    def _ask(self, question: Question) -> float | None:
        return judge_questions.ask(self._client, question.messages)
