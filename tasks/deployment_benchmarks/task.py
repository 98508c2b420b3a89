"""Celery task that beat sends when a benchmark is due. Idempotent: with two beats, the benchmark runs once."""

import logging

from celery import shared_task

from tasks.app import AssayTask
from tasks.deployment_benchmarks.model import RUNS, RunOptions

log = logging.getLogger(__name__)


@shared_task(bind=True, base=AssayTask, name="assay.benchmark")
def run_benchmark(self: AssayTask, /, name: str, slot: str) -> None:
    run = self.runtime.get(RUNS).schedule(name, slot, RunOptions())
    log.info("benchmark %s due at %s: run %s, %s %s", name, slot, run.id, run.state, run.note)
