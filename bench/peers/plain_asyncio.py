"""Plain asyncio in the program itself: one loop, one semaphore, `gather`."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.peers import questions
from bench.peers.peer import Peer
from bench.peers.questions import Question


class PlainAsyncio(Peer):
    @property
    def given(self) -> str:
        return f"1 process, {self.place.in_flight} calls"

    @contextmanager
    def running(self) -> Iterator[None]:
        with asyncio.Runner() as self._runner:
            self._client = questions.make_async_client(self.place.api_url)
            yield
            self._runner.run(self._client.close())

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        return self._runner.run(asyncio.wait_for(self._gather(asked), patience_s))

    async def _gather(self, asked: Sequence[Question]) -> list[float | None]:
        places = asyncio.Semaphore(self.place.in_flight)

        async def ask(question: Question) -> float | None:
            async with places:
                return await questions.ask_async(self._client, question.messages)

        return await asyncio.gather(*(ask(question) for question in asked))
