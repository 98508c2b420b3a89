"""Adapter for transformers under torchrun: each rank answers every n-th row in batches.

The answers are complete when every rank has finished. torchrun starts the ranks, and restarts all ranks when a rank
dies. Ranks outlive a run, so they communicate by files: the main process writes the rows, each rank its answers.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.adapters.peer import Peer, PeerSetup
from bench.peers.adapters.worker_groups import WorkerGroups
from bench.peers.call_counters import Journal
from bench.peers.workload.inference_rows import load_generator
from bench.peers.workload.judge_questions import Question

#: Rows that a rank generates together, in input order.
BATCH = 8
#: Seconds between two checks for a file.
POLL_S = 0.01


def serve(setup: Path, folder: Path, rank: int, ranks: int) -> None:
    generate, journal = load_generator(), Journal(setup)
    _write(folder / f"ready.{rank}", os.getpid())
    number = 0
    while True:
        rows, answers = folder / f"rows.{number}", folder / f"answers.{number}.{rank}"
        if answers.exists():  # answered before this rank was restarted
            number += 1
        elif rows.exists():
            mine, found = json.loads(rows.read_text())[rank::ranks], list[str]()
            for at in range(0, len(mine), BATCH):
                batch = mine[at : at + BATCH]
                for messages in batch:
                    journal.add(messages[0]["content"])
                found += generate(batch)
            _write(answers, found)
        else:
            time.sleep(POLL_S)


def _write(file: Path, value: Any) -> None:
    partial = file.with_name(f".{file.name}")
    partial.write_text(json.dumps(value))
    partial.rename(file)


class TorchrunStaticSplit(Peer):
    def __init__(self, setup: PeerSetup) -> None:
        super().__init__(setup)
        self._folder = setup.folder / "static_split"
        self._number = 0
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={setup.in_flight}"]
        ranks = [
            "--max-restarts=3",
            "-m",
            "bench.peers.adapters.torchrun_static_split",
            str(setup.folder),
            str(self._folder),
        ]
        self._groups = WorkerGroups(setup.folder, [torchrun + ranks])

    @property
    def resources(self) -> str:
        return f"{self.setup.in_flight} processes of 1 thread, batches of {BATCH}"

    @contextmanager
    def running(self) -> Iterator[None]:
        self._folder.mkdir(exist_ok=True)
        for file in self._folder.iterdir():
            file.unlink()
        with self._groups.running(lambda: all(self._ready(rank).exists() for rank in range(self.setup.in_flight))):
            yield

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        deadline, number = time.monotonic() + timeout_s, self._number
        self._number += 1
        _write(self._folder / f"rows.{number}", [question.messages for question in questions])
        answers: list[Any] = [None] * len(questions)
        for rank in range(self.setup.in_flight):
            file = self._folder / f"answers.{number}.{rank}"
            while not file.exists() and time.monotonic() < deadline:
                time.sleep(POLL_S)
            if file.exists():
                answers[rank :: self.setup.in_flight] = json.loads(file.read_text())
        return answers

    def kill_targets(self) -> list[int]:
        """Return the process id of rank 0."""
        return [int(json.loads(self._ready(0).read_text()))]

    def _ready(self, rank: int) -> Path:
        return self._folder / f"ready.{rank}"


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
