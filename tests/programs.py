"""Programs of the checkout as real processes, with their output, and no survivor after the test."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

#: Seconds anything may take on a small, busy machine before a test gives up.
PATIENCE_S = 60.0


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> object:
    """The first truthy answer of `condition`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {timeout_s:.0f} s: {what}")


def is_alive(process: psutil.Process) -> bool:
    """Running, and not a zombie that nobody has collected yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Program:
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
        """The first match in the output."""

        def look() -> object:
            if match := re.search(pattern, self.output):
                return match
            if self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} before {pattern!r}:\n{self.output[-3000:]}")
            return None

        try:
            match = wait_until(look, f"{pattern!r} in the output", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output[-3000:]}") from None
        assert isinstance(match, re.Match)
        return match

    def descendants(self) -> list[psutil.Process]:
        """All live processes below this one, now or at an earlier call."""
        if self.process.poll() is None:
            self._seen |= set(psutil.Process(self.process.pid).children(recursive=True))
        return [each for each in self._seen if is_alive(each)]

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Signal it, wait for its end, and return its exit code."""
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
        """Descendants that outlive the program, after a moment to end."""
        deadline = time.monotonic() + 10
        while self.descendants() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.descendants()


class Programs:
    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        self._started: list[Program] = []

    def start(self, *argv: str, **environment: str) -> Program:
        """Start a program from the checkout; `python` is the tests' own interpreter."""
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
        left = [survivor for program in self._started for survivor in program.survivors()]
        for survivor in left:
            survivor.kill()
        if stuck and error is None:
            raise stuck[0]
        if left and error is None:
            raise AssertionError(f"left running: {[survivor.cmdline() for survivor in left]}")
