"""Log lines of processes: format, job ids, tracebacks."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
from config.logging import configure_logging
configure_logging("cpu.node1.0", "INFO")
try:
    raise ConnectionError("Connection refused")
except ConnectionError as error:
    logging.getLogger(sys.argv[1]).exception("Error on stopping Pidbox: %r", error)
"""


@pytest.mark.parametrize(
    ("logger", "stack"),
    [("celery.bootsteps", False), ("celery.worker.consumer.consumer", False), ("tasks.jobs.execution.runner", True)],
)
def test_celerys_connection_errors_are_one_line_and_assays_errors_keep_their_traceback(
    logger: str, stack: bool
) -> None:
    written = subprocess.run([sys.executable, "-c", PROGRAM, logger], capture_output=True, text=True, check=True).stderr
    assert "Error on stopping Pidbox: ConnectionError('Connection refused')" in written
    assert ("Traceback" in written) is stack


ABOUT_JOBS = """
import asyncio, logging, sys, threading
from config.logging import configure_logging, job_context, with_job_context
configure_logging("api.node1.0", "INFO", form=sys.argv[1])
log = logging.getLogger("tasks.jobs.execution.runner")
log.info("nothing in particular")

async def call(job):
    with job_context((job,)):
        await asyncio.sleep(0)
        log.info("a call of %s", job)

def start():
    return asyncio.gather(*(call(f"j{n}") for n in range(2)))

async def calls():
    await start()
    log.info("all calls")

jobs = {"j0"}
with job_context(jobs):
    log.info("a batch")
    thread = threading.Thread(target=with_job_context(lambda: log.info("a thread")))
    thread.start(); thread.join()
    jobs.add("j1")
    log.info("a larger batch")
    asyncio.run(calls())
    with job_context([f"k{n}" for n in range(5)]):
        log.info("a large batch")
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception('POST "/rm?token=s3cret&x=1" is wrong, "/rm?token=s3cret" too')
log.info("over")
"""


def written(form: str) -> list[str]:
    run = subprocess.run([sys.executable, "-c", ABOUT_JOBS, form], capture_output=True, text=True, check=True)
    return run.stderr.splitlines()


def test_every_line_names_its_jobs_in_threads_and_coroutines() -> None:
    ends = [
        line.partition("tasks.jobs.execution.runner: ")[2]
        for line in written("text")
        if "tasks.jobs.execution.runner: " in line
    ]
    assert ends == [
        "nothing in particular",
        "a batch [job j0]",
        "a thread [job j0]",
        "a larger batch [job j0,j1]",
        "a call of j0 [job j0]",
        "a call of j1 [job j1]",
        "all calls [job j0,j1]",
        "a large batch [job k0,k1,k2 and 2 more]",
        'POST "/rm?token=***&x=1" is wrong, "/rm?token=***" too [job j0,j1]',
        "over",
    ]


def test_json_logs_have_an_object_per_line_with_the_same_fields() -> None:
    lines = [json.loads(line) for line in written("json")]
    assert [line.get("job") for line in lines] == [
        None, "j0", "j0", "j0,j1", "j0", "j1", "j0,j1", "k0,k1,k2 and 2 more", "j0,j1", None,
    ]  # fmt: skip
    assert {(line["process"], line["logger"]) for line in lines} == {("api.node1.0", "tasks.jobs.execution.runner")}
    wrong = lines[-2]
    assert (wrong["level"], wrong["message"]) == ("ERROR", 'POST "/rm?token=***&x=1" is wrong, "/rm?token=***" too')
    assert "ZeroDivisionError" in wrong["exception"]
    assert all(line["time"].endswith("Z") for line in lines)
