"""Workers without processes: registered, with the real runner, run by hand. For tests of who gets what, and when."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from config.profiles import load_profiles
from config.settings import Settings
from tasks.app import create_celery
from tasks.jobs.core import JobCore, create_core
from tasks.jobs.ledger import Chunk
from tasks.jobs.model import Job, JobRequest
from tasks.jobs.recovery import Recovery
from tasks.jobs.run import Runner
from tasks.registry import Pool, Worker
from tasks.tracing import create_tracer
from tests.programs import wait_until
from workers.process_runtime import ProcessRuntime


@dataclass
class Hand:
    """One worker that works when told to."""

    worker: Worker
    core: JobCore
    runner: Runner

    @property
    def queue(self) -> str:
        return self.worker.queues[0]

    def work(self) -> None:
        """Run what the queue holds, until nothing is left. It has no heartbeat, so it says first that it is there."""
        self.core.registry.announce(self.worker)
        self.core.dispatcher.forget_fleet()
        self.runner.run("")

    def take(self, token: str = "token") -> list[Chunk]:
        """Take chunks and do nothing with them, like a worker that was just killed, or has just begun."""
        self.core.dispatcher.forget_fleet()
        self.core.dispatcher.fill(self.worker.pool)
        return self.core.ledger.take(self.queue, "", self.runner.incarnation, self.worker.name, token)

    def begin(self, chunks: list[Chunk], requests: dict[int, str] | None = None, deadline_s: float = 60) -> str:
        batch = [(chunk.id, [(index, (requests or {}).get(index, "")) for index in chunk.items]) for chunk in chunks]
        return self.core.ledger.begin(self.runner.incarnation, chunks[0].token, deadline_s, batch)

    def leave(self) -> None:
        self.core.registry.leave(self.worker)


class Fleet:
    def __init__(self, settings: Settings, journal: Path) -> None:
        self.journal = journal
        self.settings = settings.model_copy(update={"simulated_journal": journal})
        self.celery = create_celery(self.settings)
        self.core = create_core(self.settings, self.celery)
        self.recovery: Recovery = self.core.recovery("test")
        self._runtimes: list[ProcessRuntime] = []

    def hire(
        self, pool: Pool = "device", index: int = 0, models: tuple[str, ...] = (), policies: tuple[str, ...] = ()
    ) -> Hand:
        """`policies`: URLs of its policy servers."""
        queue = f"gpu.node1.{index}" if pool == "device" else pool
        worker = Worker(
            name=queue if pool == "device" else f"{pool}.node1.{index}",
            pool=pool, node="node1", host="box", pid=1, incarnation=uuid4().hex, launcher=uuid4().hex,
            queues=(queue,), slot=index if pool == "device" else None, models=models, state="ready",
        )  # fmt: skip
        core = create_core(self.settings, self.celery, tracer=create_tracer(self.settings, pool))
        core.registry.announce(worker)
        runtime = ProcessRuntime(worker, core, load_profiles(self.settings), policies)
        self._runtimes.append(runtime)
        if policies:
            assert runtime.episodes, "it has servers"
            wait_until(lambda: _has_told(core, worker), "it has told of its servers")
        return Hand(worker, core, runtime.runner)

    def runtime_of(self, hand: Hand) -> ProcessRuntime:
        return next(runtime for runtime in self._runtimes if runtime.worker == hand.worker.name)

    def submit(self, *items: dict[str, Any], key: str | None = None, **options: Any) -> str:
        self.core.dispatcher.forget_fleet()
        return self.core.door.submit(JobRequest(kind="simulated", items=list(items), **options), key)

    def work(self, *hands: Hand) -> None:
        """All of them work until none has anything left: a chunk may be on any queue."""
        for _ in range(4):
            for hand in hands:
                hand.work()

    def finish(self, job: str, *hands: Hand) -> Job:
        """All of them work until the job is over, however slow the machine is."""

        wait_until(lambda: not self.finish_step(job, *hands), "the job ends", 100)
        return self.job(job)

    def finish_step(self, job: str, *hands: Hand) -> bool:
        """All of them work once. Returns whether the job goes on."""
        for hand in hands:
            hand.work()
        return self.job(job).is_active

    def tick(self) -> None:
        """A round of recovery, whoever ticked last."""
        self.core.state.delete("assay:tick:lock")
        assert self.recovery.tick()

    def job(self, job: str) -> Job:
        return self.core.store.job(job)

    def rows(self, job: str) -> list[dict[str, Any]]:
        return list(self.core.results.read(self.job(job)))

    def computed(self) -> list[str]:
        """What the engine computed, in order."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def close(self) -> None:
        while self._runtimes:
            self._runtimes.pop().close()
        self.celery.close()


def _has_told(core: JobCore, worker: Worker) -> bool:
    told = core.registry.get(worker.name)
    return told is not None and bool(told.policies)
