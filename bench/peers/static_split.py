"""transformers under torchrun: each rank answers every n-th row, in batches, and the answers are there when all ranks
have ended.

torchrun itself starts the ranks, and starts all of them again when one dies. They are told what to do by files, as they
outlive a run: a rank's rows are a file that the program writes, and its answers one that it writes itself.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.peer import Peer, Place
from bench.peers.questions import Question
from bench.peers.rows import load_generator
from bench.peers.witness import Journal
from bench.peers.worker_groups import WorkerGroups

#: Rows that a rank generates together, in input order.
BATCH = 8
#: Seconds between two looks for a file.
LOOK_S = 0.01


def serve(place: Path, folder: Path, rank: int, ranks: int) -> None:
    generate, journal = load_generator(), Journal(place)
    _write(folder / f"ready.{rank}", os.getpid())
    number = 0
    while True:
        rows, answers = folder / f"rows.{number}", folder / f"answers.{number}.{rank}"
        if answers.exists():  # of before this rank was started again
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
            time.sleep(LOOK_S)


def _write(file: Path, value: Any) -> None:
    partial = file.with_name(f".{file.name}")
    partial.write_text(json.dumps(value))
    partial.rename(file)


class StaticSplit(Peer):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._folder = place.folder / "static_split"
        self._number = 0
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={place.in_flight}"]
        ranks = ["--max-restarts=3", "-m", "bench.peers.static_split", str(place.folder), str(self._folder)]
        self._groups = WorkerGroups(place.folder, [torchrun + ranks])

    @property
    def given(self) -> str:
        return f"{self.place.in_flight} processes of 1 thread, batches of {BATCH}"

    @contextmanager
    def running(self) -> Iterator[None]:
        self._folder.mkdir(exist_ok=True)
        for file in self._folder.iterdir():
            file.unlink()
        with self._groups.running(lambda: all(self._ready(rank).exists() for rank in range(self.place.in_flight))):
            yield

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        deadline, number = time.monotonic() + patience_s, self._number
        self._number += 1
        _write(self._folder / f"rows.{number}", [question.messages for question in asked])
        answers: list[Any] = [None] * len(asked)
        for rank in range(self.place.in_flight):
            file = self._folder / f"answers.{number}.{rank}"
            while not file.exists() and time.monotonic() < deadline:
                time.sleep(LOOK_S)
            if file.exists():
                answers[rank :: self.place.in_flight] = json.loads(file.read_text())
        return answers

    def victims(self) -> list[int]:
        """One of the ranks."""
        return [int(json.loads(self._ready(0).read_text()))]

    def _ready(self, rank: int) -> Path:
        return self._folder / f"ready.{rank}"


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
