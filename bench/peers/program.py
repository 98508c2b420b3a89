"""A peer in a process of its own, told what to do line by line, so that all it uses can be measured from outside.

`Program` is the hand on it; `serve` is what runs there.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bench.peers.peer import Place
from bench.peers.questions import Question
from bench.peers.registry import PEERS, maker
from bench.peers.usage import tree

ROOT = Path(__file__).parents[2]
#: Seconds more than it was given that a program may take before it counts as hanging.
GRACE_S = 90.0


class NoReply(RuntimeError):
    """The program ended, or did not reply in time."""


class Program:
    """One peer, started and ready."""

    def __init__(self, name: str, place: Place) -> None:
        arguments = [name, place.api_url, place.redis_url, str(place.folder), str(place.in_flight)]
        path = os.pathsep.join([str(ROOT / "client/src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.program", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "BENCH_API_URL": place.api_url, "BENCH_REDIS_URL": place.redis_url},
            text=True,
        )
        self.pid = self._process.pid
        try:
            ready = self._read(GRACE_S)
        except NoReply:
            self.end()
            raise
        self.given: str = ready["given"]
        self.victims: list[int] = ready["victims"]
        self._make, self._questions = maker(name), list[Question]()

    def prepare(self, first: int, number: int, repeated_share: float = 0.0) -> list[Question]:
        """The questions it will ask next. Making them is no part of what is measured."""
        self._write({"make": [first, number, repeated_share]})
        self._questions = self._make(first, number, repeated_share)
        self._read(GRACE_S)
        return self._questions

    def start_answering(self, patience_s: float) -> None:
        self._write({"patience_s": patience_s})

    def finish(self, patience_s: float) -> tuple[float, list[Any]]:
        """Seconds that it took, and its answers. Raises NoReply."""
        reply = self._read(patience_s + GRACE_S)
        return reply["seconds"], reply["answers"]

    def answer(self, patience_s: float = 120.0) -> tuple[float, list[Any]]:
        """Seconds until all are answered, which they are, and rightly; and the answers."""
        self.start_answering(patience_s)
        seconds, answers = self.finish(patience_s)
        missing = sum(
            not question.is_answered(answer) for question, answer in zip(self._questions, answers, strict=True)
        )
        assert not missing, f"{missing} of {len(answers)} answers are wrong or missing"
        return seconds, answers

    def kill(self) -> None:
        """kill -9 of its victims with all below them, or of the program itself if there are none."""
        for pid in self.victims or [self.pid]:
            for process in reversed(tree(pid)):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            for process in reversed(tree(self.pid)):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _write(self, asked: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s) or not (line := self._process.stdout.readline()):
                raise NoReply(f"no reply within {timeout_s:.0f} s")
        reply: dict[str, Any] = json.loads(line)
        return reply


@contextmanager
def program(name: str, place: Place) -> Iterator[Program]:
    started = Program(name, place)
    try:
        yield started
    finally:
        started.end()


def serve(name: str, place: Place) -> None:
    # What a peer prints is not for whoever reads our lines.
    replies, sys.stdout = sys.stdout, sys.stderr
    peer, make = PEERS[name].load()(place), maker(name)
    asked: list[Question] = []

    def reply(**values: Any) -> None:
        print(json.dumps(values), file=replies, flush=True)

    with peer.running():
        reply(given=peer.given, victims=peer.victims())
        for line in sys.stdin:
            order = json.loads(line)
            if "patience_s" in order:
                started = time.perf_counter()
                answers = peer.answer(asked, order["patience_s"])
                reply(seconds=time.perf_counter() - started, answers=answers)
            else:
                asked = make(*order["make"])
                reply()


if __name__ == "__main__":
    peer_name, api_url, redis_url, folder, in_flight = sys.argv[1:]
    serve(peer_name, Place(api_url, redis_url, Path(folder), int(in_flight)))
