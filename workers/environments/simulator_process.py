"""Simulator in its own process: simulators hang, crash in native code, hold the interpreter lock, and draw from global
generators. With this isolation a hang or a crash costs one episode, which is then retried.

A plain child process, because a Celery worker's own process may not use multiprocessing.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from numpy.typing import NDArray

from tasks import errors
from tasks.episodes.model import EpisodeSpec
from tasks.errors import AssayError, SimulatorLost
from workers.environments.messages import receive, send
from workers.environments.simulator import Progress, Start

#: Timeouts in seconds: to import a simulator, load its scene and start; to execute one plan; to end on request.
START_S = 180.0
ADVANCE_S = 60.0
END_S = 2.0


class ProcessSimulator:
    def __init__(self, environment: Mapping[str, str], start_s: float = START_S, advance_s: float = ADVANCE_S) -> None:
        """`environment`: additional variables of the process, such as its renderer."""
        self._start_s, self._advance_s = start_s, advance_s
        self._socket, theirs = socket.socketpair()
        with theirs:
            # Standard error may explain a crash. Standard output is discarded: simulators print too much to it.
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workers.environments", str(theirs.fileno())],
                env=os.environ | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
            )
        self._lost = False

    @property
    def is_lost(self) -> bool:
        return self._lost or self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, spec: EpisodeSpec) -> Start:
        values = self._ask({"do": "start", "spec": spec.model_dump_json()}, self._start_s)
        return Start(**{field.name: values[field.name] for field in fields(Start)})

    def advance(self, actions: NDArray[Any]) -> Progress:
        values = self._ask({"do": "advance", "actions": actions}, self._advance_s)
        return Progress(**{field.name: values[field.name] for field in fields(Progress)})

    def video(self) -> bytes:
        video: bytes = self._ask({"do": "video"}, self._advance_s)["video"]
        return video

    def close(self) -> None:
        """Close the socket, at which the process ends; kill the process if it hangs."""
        self._socket.close()
        try:
            self._process.wait(0 if self._lost else END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def _ask(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        if self._lost:
            raise SimulatorLost("The simulator's process was lost earlier.")
        self._socket.settimeout(timeout_s)
        try:
            send(self._socket, message)
            answer = receive(self._socket)
        except (OSError, EOFError, ValueError) as error:
            self._lost = True
            hung = isinstance(error, TimeoutError)
            self._process.kill()
            self._process.wait()
            why = f"did not answer for {timeout_s:.0f} s" if hung else f"died: {self._crash_reason()}"
            raise SimulatorLost(f"The simulator's process {why}") from error
        if name := answer.get("error"):
            kind = getattr(errors, name, errors.EnvironmentFailed)
            failure: AssayError = kind(answer["message"])
            raise failure
        return answer

    def _crash_reason(self) -> str:
        self._stderr.seek(0)
        lines = self._stderr.read()[-4000:].decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {self._process.returncode}"
