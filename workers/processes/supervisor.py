"""Supervisor of child processes: starts, watches and restarts them with backoff, stops them without leaving orphans.

The caller chooses the commands to run; `workers.launch` and `workers.up` use it.
"""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FrameType

from workers.processes.signal_event import SignalEvent

log = logging.getLogger(__name__)

#: Exit codes of a child that must not be restarted: sysexits' "temporary failure" for a name that is taken, and
#: "configuration error" for an invalid setting, which does not change while the supervisor runs.
EXIT_NAME_TAKEN = 75
EXIT_MISCONFIGURED = 78
#: Exit code of a worker that lost its child process; it is restarted at once, without backoff.
EXIT_CHILD_DIED = 70
#: Seconds until the first restart; doubles with each consecutive death.
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
#: Seconds of uptime after which the backoff is reset.
STEADY_S = 30.0
#: Seconds between two checks of the children; a death or a signal is handled at once.
TICK_S = 0.5
#: Maximum seconds to wait for a killed child to end.
KILL_S = 5.0


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of this process."""
    restart: bool = True
    log_path: str = ""
    """File for its output; empty: the output of this process."""
    stop_last: bool = False
    """Whether other children depend on it: it is told to stop after they have ended."""


@dataclass(slots=True)
class Child:
    command: Command
    process: "subprocess.Popen[bytes] | None" = None
    started_at: float = 0.0
    deaths: int = 0
    restart_at: float = 0.0
    stopping: bool = False

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None


class Supervisor:
    """Supervisor in the main thread; `run` returns on a stop signal or when no child is left."""

    def __init__(self, stop_grace_s: float, kill_s: float = 1.0) -> None:
        """`kill_s`: seconds after the grace period in which children that are supervisors kill their own children."""
        self._stop_grace_s = stop_grace_s
        self._kill_s = kill_s
        self._children: dict[str, Child] = {}
        self._stop_signals = 0
        self._wake = SignalEvent()
        self.on_death: Callable[[str], None] = lambda _: None
        """Called with the name of a child that died, after its whole process group is gone."""
        self.failed: dict[str, int] = {}
        """Exit codes of children that ended by themselves and are not restarted, by name."""

    @property
    def children(self) -> dict[str, Child]:
        return self._children

    def handle_signals(self, pass_on: Sequence[signal.Signals] = ()) -> None:
        """Stop on SIGTERM, SIGINT and SIGQUIT; forward the signals of `pass_on` to the children."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, self._on_stop)
        for number in pass_on:
            signal.signal(number, self._pass_on)
        signal.signal(signal.SIGCHLD, lambda *_: self._wake.set())

    def pause(self, seconds: float) -> bool:
        """Wait until the time has passed or a stop signal arrives. Return True after a stop signal."""
        deadline = time.monotonic() + seconds
        while not self._stop_signals and (left_s := deadline - time.monotonic()) > 0:
            self._wake.wait(left_s)
        return self._stop_signals > 0

    def start(self, command: Command) -> None:
        if (known := self._children.get(command.name)) and known.process and known.process.poll() is None:
            raise ValueError(f"{command.name} is running already")
        child = self._children.setdefault(command.name, Child(command))
        child.process, child.started_at, child.stopping = _spawn(command), time.monotonic(), False
        log.info("%s started, pid %d", command.name, child.process.pid)

    def stop(self, name: str) -> None:
        """Ask a child to finish its current work and end. It is never killed for taking long."""
        child = self._children[name]
        child.stopping = True
        _signal(child, signal.SIGTERM)

    def kill(self, name: str) -> None:
        """Kill a child that is no longer usable, with its process group. It is restarted like any child that died."""
        child = self._children[name]
        if child.process and child.process.poll() is None:
            _kill_group(child)

    def run(self, tick: Callable[[], None] | None = None) -> None:
        """Watch the children until a stop signal, then stop them. Calls `tick` about twice a second.

        Returns by itself when no child is left, unless a tick may still start a child and no child has failed for good.
        """
        try:
            while not self._stop_signals and (self._children or (tick and not self.failed)):
                self.poll()
                if tick:
                    tick()
                self._wake.wait(TICK_S)
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        """Send SIGTERM to the children, to `stop_last` children after the others have ended; send SIGKILL to their
        process groups after the grace period or a second signal."""
        told = self._stop_signals
        if told and self._children:
            log.info("stopping; a second Ctrl-C or SIGTERM kills")
        deadline = time.monotonic() + self._stop_grace_s
        for is_last in (False, True):
            for child in self._children.values():
                if child.command.stop_last == is_last:
                    child.stopping = True
                    _signal(child, signal.SIGTERM)
            while self._alive(is_last) and self._stop_signals <= max(told, 1) and time.monotonic() < deadline:
                self._wake.wait(0.1)
        late = self._alive()
        for child in late:
            log.warning("%s did not end in time: killed", child.command.name)
            # A child that is a supervisor kills its own children on a second SIGTERM, then ends.
            _signal(child, signal.SIGTERM)
        deadline = time.monotonic() + self._kill_s
        while self._alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        for child in late:
            _kill_group(child)
        for child in late:
            _wait(child, KILL_S)
        self._children.clear()

    def _alive(self, with_last: bool = True) -> list[Child]:
        chosen = [each for each in self._children.values() if with_last or not each.command.stop_last]
        return [child for child in chosen if child.process and child.process.poll() is None]

    def poll(self) -> None:
        """Check every child once: record the children that ended, restart the children that are due."""
        now = time.monotonic()
        for name, child in list(self._children.items()):
            if child.process is not None and (code := child.process.poll()) is not None:
                _kill_group(child)  # processes that the child left behind
                child.process = None
                if child.stopping:
                    log.info("%s ended", name)
                    del self._children[name]
                elif not child.command.restart or code in (EXIT_NAME_TAKEN, EXIT_MISCONFIGURED):
                    log.error("%s ended with %s and is not started again", name, _describe(code))
                    self.failed[name] = code
                    del self._children[name]
                elif code == EXIT_CHILD_DIED:
                    child.restart_at = now
                else:
                    self._plan_restart(child, code, now)
                    self.on_death(name)
            elif child.process is None and child.stopping:
                del self._children[name]
            elif child.process is None and now >= child.restart_at:
                self.start(child.command)

    def _plan_restart(self, child: Child, code: int, now: float) -> None:
        child.deaths = 1 if now - child.started_at > STEADY_S else child.deaths + 1
        delay_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (child.deaths - 1))
        child.restart_at = now + delay_s
        log.warning("%s died with %s; starting it again in %.1f s", child.command.name, _describe(code), delay_s)

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_signals += 1
        self._wake.set()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        for child in self._children.values():
            _signal(child, signal.Signals(number))


def _spawn(command: Command) -> "subprocess.Popen[bytes]":
    with open(command.log_path, "ab") if command.log_path else nullcontext() as output:
        return subprocess.Popen(
            command.argv,
            env=os.environ | dict(command.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Its own session: Ctrl-C in the terminal reaches only this process, which stops the children in order.
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )


def _end_with_parent() -> None:
    """Make Linux send SIGTERM to the child when its parent dies, even by kill -9. Runs between fork and exec."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _signal(child: Child, number: signal.Signals) -> None:
    if child.process and child.process.poll() is None:
        child.process.send_signal(number)


def _wait(child: Child, seconds: float) -> None:
    if child.process:
        try:
            child.process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.debug("%s has not ended after %.1f s", child.command.name, seconds)


def _kill_group(child: Child) -> None:
    assert child.process is not None
    try:
        os.killpg(child.process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS returns EPERM for a group of zombies
        return


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
