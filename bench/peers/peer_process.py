"""Runs a peer in a separate process, so that its resource usage can be measured from outside.

The protocol is a JSON object on each line: `PeerProcess` is the client side, `serve` runs in the process.
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

from bench.peers.adapters.peer import PeerSetup
from bench.peers.adapters.registry import PEERS, question_generator
from bench.peers.workload.judge_questions import Question
from bench.processes.resource_usage import tree

ROOT = Path(__file__).parents[2]
#: Seconds beyond its timeout after which a peer process counts as hanging.
GRACE_S = 90.0


class NoReply(RuntimeError):
    """The peer process ended, or did not reply in time."""


class PeerProcess:
    """A peer in a separate process, ready for requests."""

    def __init__(self, name: str, setup: PeerSetup) -> None:
        arguments = [name, setup.api_url, setup.redis_url, str(setup.folder), str(setup.in_flight)]
        path = os.pathsep.join([str(ROOT / "client/src"), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.peer_process", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "BENCH_API_URL": setup.api_url, "BENCH_REDIS_URL": setup.redis_url},
            text=True,
        )
        self.pid = self._process.pid
        try:
            ready = self._read(GRACE_S)
        except NoReply:
            self.end()
            raise
        self.resources: str = ready["resources"]
        self.kill_targets: list[int] = ready["kill_targets"]
        self._make, self._questions = question_generator(name), list[Question]()

    def prepare(self, first: int, number: int, repeated_share: float = 0.0) -> list[Question]:
        """Let the peer generate its next questions, which is not measured, and return them."""
        self._write({"make": [first, number, repeated_share]})
        self._questions = self._make(first, number, repeated_share)
        self._read(GRACE_S)
        return self._questions

    def start_answering(self, timeout_s: float) -> None:
        self._write({"timeout_s": timeout_s})

    def finish(self, timeout_s: float) -> tuple[float, list[Any]]:
        """Return the seconds that the peer needed, and its answers. Raises NoReply."""
        reply = self._read(timeout_s + GRACE_S)
        return reply["seconds"], reply["answers"]

    def answer(self, timeout_s: float = 120.0) -> tuple[float, list[Any]]:
        """Let the peer answer its questions; fails if an answer is wrong or missing. Returns the seconds and the
        answers."""
        self.start_answering(timeout_s)
        seconds, answers = self.finish(timeout_s)
        missing = sum(
            not question.is_answered(answer) for question, answer in zip(self._questions, answers, strict=True)
        )
        assert not missing, f"{missing} of {len(answers)} answers are wrong or missing"
        return seconds, answers

    def kill(self) -> None:
        """Kill (SIGKILL) the peer's kill targets with their descendants, or the peer process itself if it has no
        workers."""
        for pid in self.kill_targets or [self.pid]:
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

    def _write(self, request: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
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
def running_peer(name: str, setup: PeerSetup) -> Iterator[PeerProcess]:
    """Start a peer process, and end it after the block."""
    started = PeerProcess(name, setup)
    try:
        yield started
    finally:
        started.end()


def serve(name: str, setup: PeerSetup) -> None:
    """Run the peer and process requests from stdin."""
    # Keep the output of the peer out of the protocol: send it to stderr.
    replies, sys.stdout = sys.stdout, sys.stderr
    peer, make = PEERS[name].load()(setup), question_generator(name)
    questions: list[Question] = []

    def reply(**values: Any) -> None:
        print(json.dumps(values), file=replies, flush=True)

    with peer.running():
        reply(resources=peer.resources, kill_targets=peer.kill_targets())
        for line in sys.stdin:
            request = json.loads(line)
            if "timeout_s" in request:
                started = time.perf_counter()
                answers = peer.answer(questions, request["timeout_s"])
                reply(seconds=time.perf_counter() - started, answers=answers)
            else:
                questions = make(*request["make"])
                reply()


if __name__ == "__main__":
    peer_name, api_url, redis_url, folder, in_flight = sys.argv[1:]
    serve(peer_name, PeerSetup(api_url, redis_url, Path(folder), int(in_flight)))
