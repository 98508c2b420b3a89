"""Pool of a process's simulators: one per concurrent episode, kept for later episodes, closed after an idle time."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tasks.episodes.model import Gymnasium, Libero, Reach
from workers.environments.catalogue import make_environment, needs_process
from workers.environments.simulator import LocalSimulator, Simulator
from workers.environments.simulator_process import ADVANCE_S, START_S, ProcessSimulator

Options = Reach | Gymnasium | Libero


@dataclass(frozen=True, slots=True)
class _Idle:
    options: Options
    simulator: Simulator
    since: float


class Simulators:
    """Thread-safe pool. The callers bound its size: each caller takes one simulator at a time."""

    def __init__(
        self,
        least: int,
        idle_s: float,
        environment: Mapping[str, str] | None = None,
        start_s: float = START_S,
        advance_s: float = ADVANCE_S,
    ) -> None:
        """`least`: idle simulators that are always kept; further idle simulators are closed after `idle_s`."""
        self._least, self._idle_s = least, idle_s
        self._environment = dict(environment or {})
        self._start_s, self._advance_s = start_s, advance_s
        self._idle: deque[_Idle] = deque()
        self._busy = 0
        self._changed = threading.Condition()
        self._reaper: threading.Thread | None = None
        self._closed = False

    @property
    def count(self) -> int:
        with self._changed:
            return self._busy + len(self._idle)

    @contextmanager
    def take(self, options: Options) -> Iterator[Simulator]:
        """Yield an idle or a new simulator for this environment. Raises EnvironmentMissing or EnvironmentFailed."""
        simulator = self._find(options)
        try:
            if simulator is None:
                simulator = self._make(options)
            yield simulator
        finally:
            self._put_back(options, simulator)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            idle = list(self._idle)
            self._idle.clear()
            self._changed.notify_all()
        for each in idle:
            each.simulator.close()

    def _find(self, options: Options) -> Simulator | None:
        """Return the idle simulator that was used last, so that the other simulators expire. If no simulator has this
        environment, close an idle simulator of a different environment to make room."""
        with self._changed:
            self._busy += 1
            for each in reversed(list(self._idle)):
                if each.options == options:
                    self._idle.remove(each)
                    if each.simulator.is_lost:
                        each.simulator.close()
                        continue
                    return each.simulator
            other = self._idle.popleft() if self._idle else None
        if other:
            other.simulator.close()
        return None

    def _make(self, options: Options) -> Simulator:
        if needs_process(options):
            return ProcessSimulator(self._environment, self._start_s, self._advance_s)
        return LocalSimulator(make_environment(options))

    def _put_back(self, options: Options, simulator: Simulator | None) -> None:
        with self._changed:
            self._busy -= 1
            keep = simulator is not None and not simulator.is_lost and not self._closed
            if keep and simulator:
                self._idle.append(_Idle(options, simulator, time.monotonic()))
                if self._reaper is None:
                    self._reaper = threading.Thread(target=self._reap, name="simulators", daemon=True)
                    self._reaper.start()
        if simulator and not keep:
            simulator.close()

    def _reap(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                spare = self._idle[0] if len(self._idle) > self._least else None
                wait_s = self._idle_s if spare is None else spare.since + self._idle_s - time.monotonic()
                if spare is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                self._idle.popleft()
            spare.simulator.close()
