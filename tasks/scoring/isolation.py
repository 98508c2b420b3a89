"""Runner of isolated scorers: executes them in a child process, which is killed when a scorer exceeds its time limit.

Each worker process has at most one child, started on first use and again after a crash; see isolated_process.py.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from typing import Any

from tasks.errors import CannotJudge
from tasks.scoring.isolated_process import WALL_CLOCK_FACTOR
from tasks.scoring.scorer import LimitedOptions, Options, Sample, Scorer

#: Timeout for the start of the child, in seconds.
START_S = 60.0
#: Seconds that the parent waits beyond the child's own limit before it kills the child.
GRACE_S = 5.0
#: Attempts per item when the child is killed from outside, for example by the kernel's out-of-memory killer.
MAX_ATTEMPTS = 2
#: Exit codes of a child that the kernel ended at its time limit.
OUT_OF_TIME = (-signal.SIGPROF, -signal.SIGALRM)


class Isolation:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def score(self, scorer: Scorer[Any], options: Options, sample: Sample) -> float:
        """Run the scorer in the child. Raises CannotJudge, also for a timeout and for a crash of the child."""
        assert isinstance(options, LimitedOptions), "checked when the scorer was made"
        limit_s = options.timeout_s
        request = {
            "scorer": scorer.name,
            "options": options.model_dump_json(by_alias=True),
            "limit_s": limit_s,
            "sample": {
                "text": sample.text,
                "references": sample.references,
                "prompt": sample.prompt,
                "metadata": dict(sample.metadata),
            },
        }
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            for _ in range(MAX_ATTEMPTS):
                answer = self._ask(line, WALL_CLOCK_FACTOR * limit_s + GRACE_S)
                if answer is not None:
                    break
                if self._end() in OUT_OF_TIME:
                    raise CannotJudge("scorer_timeout", f"The scorer took more than {limit_s:g} s.")
            else:
                raise CannotJudge("scorer_crashed", f"The scorer's process died on this item, {MAX_ATTEMPTS} times.")
        if "reason" in answer:
            raise CannotJudge(answer["reason"], answer["message"])
        return float(answer["score"])

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, line: bytes, wait_s: float) -> dict[str, Any] | None:
        """Send a request and return the child's answer; None when the child died."""
        child = self._running()
        assert child.stdin
        try:
            child.stdin.write(line)
            child.stdin.flush()
        except BrokenPipeError:
            return None
        answer = _read_line(child, wait_s)
        return json.loads(answer) if answer else None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child and self._owner == os.getpid() and self._child.poll() is None:
            return self._child
        if self._owner == os.getpid():
            self._end()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tasks.scoring.isolated_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._owner = os.getpid()
        if _read_line(self._child, START_S) != b"ready\n":
            self._end()
            raise CannotJudge("scorer_unavailable", "The process for isolated scorers does not start; see the log.")
        return self._child

    def _end(self) -> int | None:
        """End the child if it still runs, and return its exit code."""
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin
        assert child.stdout
        with suppress(BrokenPipeError):  # the child may have exited with an unread request
            child.stdin.close()
        child.stdout.close()
        try:
            code = child.wait(0.5)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        return code


@cache
def isolation() -> Isolation:
    """Return the Isolation of this process, creating it on first use."""
    shared = Isolation()
    atexit.register(shared.close)
    return shared


def _read_line(child: subprocess.Popen[bytes], wait_s: float) -> bytes:
    assert child.stdout
    ready, _, _ = select.select([child.stdout], [], [], wait_s)
    return child.stdout.readline() if ready else b""
