"""The real processes of a system, with methods to submit jobs, to look at them, and to kill processes."""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from config import keys
from config.settings import Settings, variable
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.jobs.core import JobCore
from tasks.jobs.model import Job, JobRequest
from tests.support.programs import PATIENCE_S, Program, is_alive, wait_until
from tests.support.redis_server import RedisServer


class System:
    def __init__(
        self,
        run: Callable[..., Program],
        state: RedisServer,
        cache: RedisServer,
        journal: Path,
        **broker: Any,
    ) -> None:
        """`broker`: the settings of another broker than the state Redis."""
        self._run = run
        self._broker = {variable(name): str(value) for name, value in broker.items()}
        self.state, self.cache, self.journal = state, cache, journal
        storage = (journal.parent / "storage").as_uri()
        self.settings = Settings(
            redis_url=state.url, cache_url=cache.url, node="node1", storage_url=storage,
            data_dir=journal.parent / "data",  # as programs have it; the developer's data folder holds models
            **broker,
        )  # fmt: skip
        self.celery = create_celery(self.settings)
        self.core: JobCore = create_core(self.settings, self.celery)
        self.launchers: list[Program] = []

    def launch(self, pool: str, *arguments: str, **environment: str) -> Program:
        launcher = self._run(
            "python", "-m", "workers.launch", pool, *arguments,
            **{"ASSAY_REDIS_URL": self.state.url, "ASSAY_CACHE_URL": self.cache.url, "ASSAY_NODE": "node1",
               "ASSAY_STORAGE_URL": self.settings.storage_url, "ASSAY_SLOTS": "cpu:2",
               "ASSAY_SIMULATED_JOURNAL": str(self.journal)} | self._broker | environment,
        )  # fmt: skip
        self.launchers.append(launcher)
        return launcher

    def stop(self) -> None:
        """Kill every process. Other tests check the orderly stop, which takes seconds."""
        for launcher in self.launchers:
            below = launcher.descendants()
            launcher.process.kill()
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            launcher.wait()
        self.celery.close()

    def wait_for_workers(self, number: int) -> None:
        def look() -> bool:
            return sum(worker.state == "ready" for worker in self.core.registry.workers()) == number

        wait_until(look, f"{number} workers are ready")

    # --- jobs ---

    def submit(self, *items: dict[str, Any], key: str | None = None, **options: Any) -> str:
        self.core.dispatcher.forget_fleet()
        return self.core.submitter.submit(JobRequest(kind="simulated", items=list(items), **options), key)

    def job(self, job: str) -> Job:
        return self.core.store.job(job)

    def finish(self, job: str, timeout_s: float = 2 * PATIENCE_S) -> Job:
        """Wait for the end of the job, and check that each item has a single outcome, in order, and is counted once."""
        ended = self.core.results.wait(job, timeout_s)
        assert not ended.is_active, f"not ended within {timeout_s} s: {ended}\n{self.ledger(job)}"
        rows = self.rows(job)
        assert [row["index"] for row in rows] == list(range(ended.total))
        counts = Counter(row["status"] for row in rows)
        assert counts["ok"] == ended.ok
        assert counts["failed"] + counts["timed_out"] + counts["cancelled"] == ended.total - ended.ok
        assert sum(ended.reasons.values()) == ended.failed
        return ended

    def ledger(self, job: str) -> str:
        """Describe where the items of an unfinished job are, with the log of its workers, to find out why it hangs."""
        state = self.core.state
        facts = {
            "chunks": {chunk: state.hgetall(keys.chunk(chunk)) for chunk in state.smembers(keys.job_chunks(job))},
            "pending": {stage["name"]: state.lrange(keys.job_pending(job, stage["name"]), 0, -1)
                        for stage in self.core.store.stages(job)},
            "parked": state.zrange(keys.parked(), 0, -1, withscores=True),
            "holders": {holder: state.smembers(keys.held(holder)) for holder in state.smembers(keys.holders())},
            "waiters": {key: state.smembers(key) for key in state.keys(keys.waiters("*"))},
            "ready": {key: state.zrange(key, 0, -1) for key in state.keys(keys.ready("*", "*"))},
            "workers": [(each.name, each.incarnation, each.active) for each in self.core.registry.workers()],
            "time": state.time(),
        }  # fmt: skip
        return json.dumps(facts, indent=1, default=list) + "".join(each.output[-3000:] for each in self.launchers)

    def rows(self, job: str) -> list[dict[str, Any]]:
        return list(self.core.results.read(self.job(job)))

    def computed(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def wait_for_progress(self, job: str, items: int) -> None:
        wait_until(lambda: self.job(job).ok >= items, f"{items} items are done")

    # --- faults ---

    def parents(self, pool: str = "device") -> list[psutil.Process]:
        """Return the live parent processes of a pool's workers."""
        pids = [worker.pid for worker in self.core.registry.workers() if worker.pool == pool]
        return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid) and is_alive(psutil.Process(pid))]

    def children(self, pool: str = "device") -> list[psutil.Process]:
        return [child for parent in self.parents(pool) for child in parent.children() if is_alive(child)]

    def kill_a_worker(self, chance: random.Random) -> None:
        """Send SIGKILL to a random child, or to a random parent and its descendants."""
        victims = self.children() if chance.random() < 0.7 else self.parents()
        if victims:
            victim = chance.choice(victims)
            below = victim.children(recursive=True)
            for process in [victim, *below]:
                if process.is_running():
                    os.kill(process.pid, signal.SIGKILL)
