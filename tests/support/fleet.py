"""Workers without processes of their own: registered, with the real runner, and run step by step by the test.

For tests of dispatch and recovery, which decide where the ledger puts a chunk and when.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from config import keys
from config.pools import WorkerPool
from config.profiles import load_profiles
from config.settings import Settings
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.episodes.model import EPISODES
from tasks.jobs.core import JobCore
from tasks.jobs.dispatch.recovery import Recovery
from tasks.jobs.execution.runner import RUNNER, Runner
from tasks.jobs.kind import KindFactory
from tasks.jobs.model import Job, JobRequest
from tasks.jobs.state.ledger import Chunk
from tasks.kinds import KINDS
from tasks.redis_clock import read_time
from tasks.tracing import create_tracer
from tasks.worker_registry import Worker
from tests.support.programs import PATIENCE_S, wait_until
from workers.worker.runtime import ProcessRuntime


@dataclass
class Hand:
    """A worker that runs in the test's own thread, and only when the test calls it."""

    worker: Worker
    core: JobCore
    runner: Runner

    @property
    def queue(self) -> str:
        return self.worker.queues[0]

    def work(self) -> None:
        """Run the chunks of the queue until it is empty. The worker has no heartbeat, so it announces itself first."""
        self.core.registry.announce(self.worker)
        self.core.dispatcher.forget_fleet()
        self.runner.run("")

    def take(self, lease_id: str = "lease") -> list[Chunk]:
        """Take chunks and leave them unfinished, like a worker that was killed after the take, or has just begun."""
        self.core.dispatcher.forget_fleet()
        self.core.dispatcher.fill(self.worker.pool)
        return self.core.ledger.take(self.queue, "", self.runner.incarnation, self.worker.name, lease_id)

    def begin(self, chunks: list[Chunk], requests: dict[int, str] | None = None, deadline_s: float = 60) -> str:
        batch = [(chunk.id, [(index, (requests or {}).get(index, "")) for index in chunk.items]) for chunk in chunks]
        return self.core.ledger.begin(self.runner.incarnation, chunks[0].lease_id, deadline_s, batch)

    def leave(self) -> None:
        self.core.registry.leave(self.worker)


class Fleet:
    def __init__(self, settings: Settings, journal: Path, kinds: Sequence[KindFactory] = KINDS) -> None:
        self.journal = journal
        self.kinds = kinds
        update: dict[str, Any] = {"simulated_journal": journal, "heartbeat_ttl_s": max(settings.heartbeat_ttl_s, 600.0)}
        self.settings = settings.model_copy(update=update)
        self.celery = create_celery(self.settings)
        self.core = create_core(self.settings, self.celery, kinds=kinds)
        self.recovery: Recovery = self.core.recovery()
        self._runtimes: list[ProcessRuntime] = []

    def hire(
        self, pool: WorkerPool = "device", index: int = 0, models: tuple[str, ...] = (), policies: tuple[str, ...] = ()
    ) -> Hand:
        """Register a worker. `policies`: URLs of its policy servers."""
        queue = f"gpu.node1.{index}" if pool == "device" else pool
        worker = Worker(
            name=queue if pool == "device" else f"{pool}.node1.{index}",
            pool=pool, node="node1", host="box", pid=1, incarnation=uuid4().hex, launcher=uuid4().hex,
            queues=(queue,), slot=index if pool == "device" else None, models=models, state="ready",
        )  # fmt: skip
        core = create_core(self.settings, self.celery, tracer=create_tracer(self.settings, pool), kinds=self.kinds)
        core.registry.announce(worker)
        runtime = ProcessRuntime(worker, core, load_profiles(self.settings), policies)
        self._runtimes.append(runtime)
        if policies:
            assert runtime.find(EPISODES), "it has servers"
            wait_until(lambda: _has_told(core, worker), "it has told of its servers")
        return Hand(worker, core, runtime.get(RUNNER))

    def runtime_of(self, hand: Hand) -> ProcessRuntime:
        return next(runtime for runtime in self._runtimes if runtime.worker == hand.worker.name)

    def submit(self, *items: dict[str, Any], key: str | None = None, **options: Any) -> str:
        self.core.dispatcher.forget_fleet()
        return self.core.submitter.submit(JobRequest(kind="simulated", items=list(items), **options), key)

    def work(self, *hands: Hand) -> None:
        """Let the workers take turns until their queues are empty: a chunk may be on any queue."""
        for _ in range(4):
            for hand in hands:
                hand.work()

    def finish(self, job: str, *hands: Hand) -> Job:
        """Let the workers take turns until the job has ended, and return it."""

        wait_until(lambda: not self.finish_step(job, *hands), "the job ends", 2 * PATIENCE_S)
        return self.job(job)

    def finish_step(self, job: str, *hands: Hand) -> bool:
        """Let each worker work once. Return whether the job is still active."""
        for hand in hands:
            hand.work()
        return self.job(job).is_active

    def tick(self) -> None:
        """Run a round of recovery, although the last round was a moment ago."""
        state = self.core.state
        a_second_ago = read_time(state) - 1
        if float(str(state.hget(keys.tick(), "last") or 0)) > a_second_ago:
            state.hset(keys.tick(), "last", a_second_ago)
        assert self.recovery.tick()

    def job(self, job: str) -> Job:
        return self.core.store.job(job)

    def rows(self, job: str) -> list[dict[str, Any]]:
        return list(self.core.results.read(self.job(job)))

    def computed(self) -> list[str]:
        """Return the items that the engine computed, in order."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def close(self) -> None:
        while self._runtimes:
            self._runtimes.pop().close()
        self.celery.close()


def _has_told(core: JobCore, worker: Worker) -> bool:
    told = core.registry.get(worker.name)
    return told is not None and bool(told.policies)
