"""What beat sends when a benchmark is due. Two beats send it twice; it is run once."""

import logging

from celery import shared_task

from tasks.app import AssayTask
from tasks.benchmarks.model import RunOptions

log = logging.getLogger(__name__)


@shared_task(bind=True, base=AssayTask, name="assay.benchmark")
def run_benchmark(self: AssayTask, /, name: str, slot: str) -> None:
    run = self.runtime.runs.schedule(name, slot, RunOptions())
    log.info("benchmark %s due at %s: run %s, %s %s", name, slot, run.id, run.state, run.note)
