"""Running chunks: the chunks that workers have taken, by queue, with their jobs."""

from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis

from tasks import lua
from tasks.jobs.queries import SCRIPTS

#: Default maximum number of chunks per queue. A device runs a few chunks; the queue `api` may have hundreds.
MOST_TOLD = 64


@dataclass(frozen=True, slots=True)
class RunningChunk:
    """A chunk that a worker runs."""

    queue: str
    chunk: str
    worker: str
    job_id: str
    kind: str
    priority: str
    stage: str
    items: int
    since: float
    """Time when a worker took it, by the clock of the state Redis."""


class RunningChunks:
    def __init__(self, state: Redis) -> None:
        self._script = state.register_script(lua.load(SCRIPTS / "read_running_chunks.lua"))

    def read(self, queues: Sequence[str] = (), most: int = MOST_TOLD) -> list[RunningChunk]:
        """Return the running chunks of the given queues, or of every queue; sorted by queue, the oldest first."""
        flat = self._script(keys=[], args=[most, *queues])
        rows = (flat[at : at + 9] for at in range(0, len(flat), 9))
        found = [
            RunningChunk(queue, chunk, worker, job, kind, priority, stage, int(items), float(since))
            for queue, chunk, worker, job, kind, priority, stage, items, since in rows
        ]
        return sorted(found, key=lambda each: (each.queue, each.since))
