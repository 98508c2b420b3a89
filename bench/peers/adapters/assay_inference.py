"""Adapter for Assay: an inference job with all rows, on device slots with a single thread each."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from assay.errors import WaitTimeout

from bench.peers.adapters.assay_system import WORKERS, AssaySystem
from bench.peers.call_counters import Journal
from bench.peers.workload.inference_rows import TOKENS
from bench.peers.workload.judge_questions import Question

#: Log line of recovery.
PUT_BACK = re.compile(r"is dead.*: (\d+) items are pending again")


class AssayInference(AssaySystem):
    pool = "device"

    @property
    def resources(self) -> str:
        return f"web, launcher, {WORKERS} device slots of 1 thread"

    def settings(self) -> dict[str, str]:
        return {"ASSAY_SLOTS": f"cpu:{WORKERS}", "ASSAY_MODELS_DIR": os.environ["BENCH_MODELS_DIR"]}

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        items = [question.item for question in questions]
        spec = {"model": "smollm2", "sampling": {"max_new_tokens": TOKENS}}
        job = self.client.submit("inference", items, spec, cache="off")
        journal, answers = Journal(self.setup.folder), dict[int, Any]()
        put_back = self._count_put_back()

        def read() -> None:
            for row in job.results(wait=False):
                if row.index not in answers:
                    answers[row.index] = row.value["answers"][0] if row.valid else None
                    journal.add(items[row.index]["query"])

        with suppress(WaitTimeout):
            for _ in job.watch(timeout_s):
                read()
        read()
        journal.add(items[0]["query"], times=self._count_put_back() - put_back)
        return [answers.get(at) for at in range(len(items))]

    def _count_put_back(self) -> int:
        """Return the number of rows that dead workers held, by the recovery log: an upper bound of the rows started
        twice."""
        return sum(map(int, PUT_BACK.findall(self.log.read_text())))
