"""Assay: an inference job for all rows, on device slots of one thread each."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from assay.errors import WaitTimeout

from bench.peers.assay_system import WORKERS, AssaySystem
from bench.peers.questions import Question
from bench.peers.rows import TOKENS
from bench.peers.witness import Journal

#: What recovery logs.
PUT_BACK = re.compile(r"is gone.*: (\d+) items wait again")


class AssayInference(AssaySystem):
    pool = "device"

    @property
    def given(self) -> str:
        return f"web, launcher, {WORKERS} device slots of 1 thread"

    def settings(self) -> dict[str, str]:
        return {"ASSAY_SLOTS": f"cpu:{WORKERS}", "ASSAY_MODELS_DIR": os.environ["BENCH_MODELS_DIR"]}

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        items = [question.item for question in asked]
        spec = {"model": "smollm2", "sampling": {"max_new_tokens": TOKENS}}
        job = self.client.submit("inference", items, spec, cache="off")
        journal, answers = Journal(self.place.folder), dict[int, Any]()
        put_back = self._count_put_back()

        def read() -> None:
            for row in job.results(wait=False):
                if row.index not in answers:
                    answers[row.index] = row.value["answers"][0] if row.valid else None
                    journal.add(items[row.index]["query"])

        with suppress(WaitTimeout):
            for _ in job.watch(patience_s):
                read()
        read()
        journal.add(items[0]["query"], times=self._count_put_back() - put_back)
        return [answers.get(at) for at in range(len(items))]

    def _count_put_back(self) -> int:
        """Rows that a worker held when it died, as the others say: at most so many were begun twice."""
        return sum(map(int, PUT_BACK.findall(self.log.read_text())))
