"""What runs right now, queue by queue: the chunks that workers have taken, and of which jobs they are."""

from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis

from tasks import lua
from tasks.jobs.queries import SCRIPTS

#: Chunks told of for one queue, unless more are asked for. A device has a few; on `api` there may be hundreds.
MOST_TOLD = 64


@dataclass(frozen=True, slots=True)
class RunningChunk:
    """One chunk that a worker runs."""

    queue: str
    chunk: str
    worker: str
    job_id: str
    kind: str
    priority: str
    stage: str
    items: int
    since: float
    """When it was taken, by the state Redis's clock."""


class RunningChunks:
    def __init__(self, state: Redis) -> None:
        self._script = state.register_script(lua.load(SCRIPTS / "read_running_chunks.lua"))

    def read(self, queues: Sequence[str] = (), most: int = MOST_TOLD) -> list[RunningChunk]:
        """By queue, the oldest first; of these queues, or of all."""
        flat = self._script(keys=[], args=[most, *queues])
        rows = (flat[at : at + 9] for at in range(0, len(flat), 9))
        found = [
            RunningChunk(queue, chunk, worker, job, kind, priority, stage, int(items), float(since))
            for queue, chunk, worker, job, kind, priority, stage, items, since in rows
        ]
        return sorted(found, key=lambda each: (each.queue, each.since))
