"""Adapter for plain transformers in the peer process itself: a `generate` call for each row, on all cores."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.peers.adapters.peer import Peer
from bench.peers.call_counters import Journal
from bench.peers.workload.inference_rows import load_generator
from bench.peers.workload.judge_questions import Question


class TransformersOneByOne(Peer):
    @property
    def resources(self) -> str:
        return f"1 process, {os.cpu_count()} threads"

    @contextmanager
    def running(self) -> Iterator[None]:
        self._generate = load_generator()
        yield

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:  # noqa: ARG002  # it runs in this process
        journal = Journal(self.setup.folder)
        answers: list[Any] = []
        for question in questions:
            journal.add(question.item["query"])
            answers += self._generate([question.messages])
        return answers
