"""Autoscaling of API and CPU worker processes, by queued work. Decisions only; `workers.launch` applies them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasks.worker_registry import Worker


@dataclass(frozen=True, slots=True)
class Bounds:
    least: int
    most: int
    idle_s: float
    """Seconds after which an idle worker above the minimum is stopped."""


@dataclass(frozen=True, slots=True)
class Start:
    index: int


@dataclass(frozen=True, slots=True)
class Stop:
    index: int


@dataclass(slots=True)
class Scaler:
    """Scaling decisions for one pool; keeps the time since which each worker has been idle."""

    bounds: Bounds
    _idle_since: dict[int, float] = field(default_factory=dict)

    def decide(self, queued: int, running: dict[int, Worker | None], now: float) -> Start | Stop | None:
        """Return at most one step. `running` holds the processes by index; None for a process that has not registered.

        With queued work while no process is starting: start one more. With an empty queue and a process idle for
        `idle_s`: stop it, the highest index first.
        """
        starting = [index for index, worker in running.items() if worker is None or worker.state == "starting"]
        self._note_idle(running, queued, now)
        if len(running) < self.bounds.least:
            return Start(_free_index(running))
        if queued > 0 and not starting and len(running) < self.bounds.most:
            return Start(_free_index(running))
        if queued == 0 and len(running) > self.bounds.least:
            idle = [i for i, since in self._idle_since.items() if now - since >= self.bounds.idle_s]
            if idle:
                return Stop(max(idle))
        return None

    def _note_idle(self, running: dict[int, Worker | None], queued: int, now: float) -> None:
        """Update the idle times. With queued work no worker counts as idle: a check hardly ever sees tasks of
        milliseconds running."""
        ready = {i for i, worker in running.items() if worker and worker.state == "ready" and worker.active == 0}
        idle = ready if queued == 0 else set()
        self._idle_since = {index: self._idle_since.get(index, now) for index in idle}


def _free_index(taken: Sequence[int] | dict[int, Worker | None]) -> int:
    return next(index for index in range(len(taken) + 1) if index not in taken)
