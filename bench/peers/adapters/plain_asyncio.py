"""Adapter for plain asyncio: an event loop with a semaphore and `gather`, in the peer process itself."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.peers.adapters.peer import Peer
from bench.peers.workload import judge_questions
from bench.peers.workload.judge_questions import Question


class PlainAsyncio(Peer):
    @property
    def resources(self) -> str:
        return f"1 process, {self.setup.in_flight} calls"

    @contextmanager
    def running(self) -> Iterator[None]:
        with asyncio.Runner() as self._runner:
            self._client = judge_questions.make_async_client(self.setup.api_url)
            yield
            self._runner.run(self._client.close())

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        return self._runner.run(asyncio.wait_for(self._gather(questions), timeout_s))

    async def _gather(self, questions: Sequence[Question]) -> list[float | None]:
        in_flight = asyncio.Semaphore(self.setup.in_flight)

        async def ask(question: Question) -> float | None:
            async with in_flight:
                return await judge_questions.ask_async(self._client, question.messages)

        return await asyncio.gather(*(ask(question) for question in questions))
