"""Scorers whose time nothing else bounds, run in a child process that is ended when they take too long.

One child for each process that needs one, started on first use and again after a death; see isolated.py.
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
from tasks.scoring.isolated import PATIENCE
from tasks.scoring.scorer import LimitedOptions, Options, Sample, Scorer

#: Seconds the child may take to start.
START_S = 60.0
#: Seconds beyond its own limit that we wait for the child before we end it ourselves.
GRACE_S = 5.0
#: How often an item is tried whose process was ended by others, such as a kernel short of memory.
TRIES = 2
#: What the kernel ends the child with when its time is up.
OUT_OF_TIME = (-signal.SIGPROF, -signal.SIGALRM)


class Isolation:
    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def judge(self, scorer: Scorer[Any], options: Options, sample: Sample) -> float:
        """The scorer's score. Raises CannotJudge, also for one that took too long, or took its process down."""
        assert isinstance(options, LimitedOptions), "checked when the scorer was made"
        limit_s = options.timeout_s
        request = {
            "scorer": scorer.name,
            "options": options.model_dump_json(by_alias=True),
            "limit_s": limit_s,
            "sample": {
                "text": sample.text, "references": sample.references, "prompt": sample.prompt,
                "metadata": dict(sample.metadata),
            },
        }  # fmt: skip
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            for _ in range(TRIES):
                answer = self._ask(line, PATIENCE * limit_s + GRACE_S)
                if answer is not None:
                    break
                if self._end() in OUT_OF_TIME:
                    raise CannotJudge("scorer_timeout", f"The scorer took more than {limit_s:g} s.")
            else:
                raise CannotJudge("scorer_crashed", "The scorer's process died on this item, twice.")
        if "reason" in answer:
            raise CannotJudge(answer["reason"], answer["message"])
        return float(answer["score"])

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, line: bytes, wait_s: float) -> dict[str, Any] | None:
        """The child's answer; None when it died."""
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
            [sys.executable, "-m", "tasks.scoring.isolated"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        self._owner = os.getpid()
        if _read_line(self._child, START_S) != b"ready\n":
            self._end()
            raise CannotJudge("scorer_unavailable", "The process for isolated scorers does not start; see the log.")
        return self._child

    def _end(self) -> int | None:
        """End the child if it has not ended. Returns how it did."""
        child, self._child = self._child, None
        if child is None:
            return None
        assert child.stdin
        assert child.stdout
        with suppress(BrokenPipeError):  # it may be gone already, with a request unread
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
    """The one of this process."""
    shared = Isolation()
    atexit.register(shared.close)
    return shared


def _read_line(child: subprocess.Popen[bytes], wait_s: float) -> bytes:
    assert child.stdout
    ready, _, _ = select.select([child.stdout], [], [], wait_s)
    return child.stdout.readline() if ready else b""
