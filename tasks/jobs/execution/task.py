"""The one Celery task of all job kinds: a message names a chunk; the ledger decides what is run."""

from celery import shared_task

from tasks.app import AssayTask
from tasks.jobs.execution.runner import RUNNER


@shared_task(bind=True, base=AssayTask, name="assay.chunk")
def run_chunk(self: AssayTask, /, job_id: str, chunk: str) -> None:  # noqa: ARG001  # `job` is for those who read Flower
    self.runtime.get(RUNNER).run(chunk)
