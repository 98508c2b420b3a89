"""Run programs of the checkout as real processes, read their output, and leave none running after the test."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

#: Seconds that a step may take on a small and busy machine before a test gives up: the common bound of every wait. It
#: lies far above the time needed on an idle machine, and far below `timeout` in pyproject.toml, which ends a test that
#: hangs. A test must not pass or fail by how much of this time it uses.
PATIENCE_S = 150.0


def wait_until(
    condition: Callable[[], object], description: str | Callable[[], str], timeout_s: float = PATIENCE_S
) -> object:
    """Poll `condition` and return its first truthy result. Raise AssertionError with the description on timeout."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.005
    while True:
        is_last = time.monotonic() > deadline  # read before the poll, so that a late poll still counts
        if answer := condition():
            return answer
        if is_last:
            said = description if isinstance(description, str) else description()
            raise AssertionError(f"not within {timeout_s:.0f} s: {said}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


def is_alive(process: psutil.Process) -> bool:
    """Whether the process runs; a zombie, whose parent has not collected it yet, does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Program:
    """A program that was started, with its output so far."""

    def __init__(self, argv: list[str], environment: dict[str, str], folder: Path, log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                argv, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._seen: set[psutil.Process] = set()

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout_s: float = PATIENCE_S) -> re.Match[str]:
        """Wait until the output matches, and return the match. Raise AssertionError if the program ends before."""

        def look() -> object:
            has_ended = self.process.poll() is not None  # read first, so that the output holds its last words
            if match := re.search(pattern, self.output):
                return match
            if has_ended:
                raise AssertionError(f"ended with {self.process.returncode} before {pattern!r}:\n{self.output[-3000:]}")
            return None

        try:
            match = wait_until(look, f"{pattern!r} in the output", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output[-3000:]}") from None
        assert isinstance(match, re.Match)
        return match

    def descendants(self) -> list[psutil.Process]:
        """Return the live processes that are, or were at an earlier call, below this one."""
        if self.process.poll() is None:
            self._seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        return [each for each in self._seen if is_alive(each)]

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Send the signal, wait for the end of the program, and return its exit code."""
        self.descendants()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s:.0f} s:\n{self.output[-3000:]}") from None

    def survivors(self) -> list[psutil.Process]:
        """Return the descendants that still run when the time to end is over."""
        with suppress(AssertionError):
            wait_until(lambda: not self.descendants(), "the descendants have ended")
        return self.descendants()


class Programs:
    """Starts programs, and stops them at the end of the block. A program that does not stop fails the test."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._started: list[Program] = []

    def start(self, *argv: str, **environment: str) -> Program:
        """Start a program in the checkout; `python` means the interpreter that runs the tests."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        program = Program(
            [sys.executable if argv[0] == "python" else argv[0], *argv[1:]],
            os.environ | {"PATH": path, "ASSAY_DATA_DIR": str(self._folder / "data")} | environment,
            self._root,
            self._folder / f"program-{len(self._started)}.log",
        )
        self._started.append(program)
        return program

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stuck: list[AssertionError] = []
        for program in self._started:
            try:
                program.stop()
            except AssertionError as late:
                stuck.append(late)
                program.process.kill()
                program.process.wait()
        left = []
        for survivor in (survivor for program in self._started for survivor in program.survivors()):
            with suppress(psutil.NoSuchProcess):  # it ended just now
                left.append(survivor.cmdline())
                survivor.kill()
        if stuck and error is None:
            raise stuck[0]
        if left and error is None:
            raise AssertionError(f"left running: {left}")
