"""A ThreadPoolExecutor in the program itself: one process, one blocking call a thread."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from bench.peers import questions
from bench.peers.peer import Peer
from bench.peers.questions import Question


class ThreadPool(Peer):
    @property
    def given(self) -> str:
        return f"1 process, {self.place.in_flight} threads"

    @contextmanager
    def running(self) -> Iterator[None]:
        with (
            questions.make_client(self.place.api_url) as self._client,
            ThreadPoolExecutor(self.place.in_flight) as self._pool,
        ):
            yield

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        return list(self._pool.map(self._ask, asked, timeout=patience_s))

    def _ask(self, question: Question) -> float | None:
        return questions.ask(self._client, question.messages)
