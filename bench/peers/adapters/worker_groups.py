"""Supervisor for the worker processes of a peer: restarts dead processes, as systemd would."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

#: Timeouts for the start and the stop of a peer, and delay of a restart, in seconds.
START_S = 60.0
STOP_S = 20.0
RESTART_S = 1.0


class WorkerGroups:
    """Worker processes, one for each command."""

    def __init__(self, folder: Path, commands: Sequence[Sequence[str]], **environment: str) -> None:
        self.log = folder / "workers.log"
        self._commands, self._environment = commands, environment
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopping = threading.Event()

    @contextmanager
    def running(self, is_ready: Callable[[], bool]) -> Iterator[None]:
        self._processes = [self._start(command) for command in self._commands]
        watch = threading.Thread(target=self._keep, daemon=True)
        try:
            self._wait_for(is_ready)
            watch.start()
            yield
        finally:
            self._stopping.set()
            if watch.is_alive():
                watch.join()
            self._stop()

    def first(self) -> int:
        return self._processes[0].pid

    def _start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *command],
                env=os.environ | self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _keep(self) -> None:
        while not self._stopping.wait(RESTART_S):
            for at, process in enumerate(self._processes):
                if process.poll() is not None:
                    self._processes[at] = self._start(self._commands[at])

    def _stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not ready within {START_S:.0f} s: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)
