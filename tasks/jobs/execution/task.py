"""Celery task of every job kind: a message names a chunk, and the ledger decides which chunk the worker runs."""

from celery import shared_task

from tasks.app import AssayTask
from tasks.jobs.execution.runner import RUNNER


@shared_task(bind=True, base=AssayTask, name="assay.chunk")
def run_chunk(self: AssayTask, /, job_id: str, chunk: str) -> None:  # noqa: ARG001  # `job_id` is shown in Flower
    self.runtime.get(RUNNER).run(chunk)
