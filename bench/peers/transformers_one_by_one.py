"""transformers in the program itself: one `generate` a row, with all cores."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.peers.peer import Peer
from bench.peers.questions import Question
from bench.peers.rows import load_generator
from bench.peers.witness import Journal


class TransformersOneByOne(Peer):
    @property
    def given(self) -> str:
        return f"1 process, {os.cpu_count()} threads"

    @contextmanager
    def running(self) -> Iterator[None]:
        self._generate = load_generator()
        yield

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:  # noqa: ARG002  # it has nobody to wait for
        journal = Journal(self.place.folder)
        answers: list[Any] = []
        for question in asked:
            journal.add(question.item["query"])
            answers += self._generate([question.messages])
        return answers
