"""What processes write to their log."""

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
    [("celery.bootsteps", False), ("celery.worker.consumer.consumer", False), ("tasks.jobs.run", True)],
)
def test_celerys_word_of_a_lost_connection_is_one_line_and_our_own_errors_keep_their_stack(
    logger: str, stack: bool
) -> None:
    written = subprocess.run([sys.executable, "-c", PROGRAM, logger], capture_output=True, text=True, check=True).stderr
    assert "Error on stopping Pidbox: ConnectionError('Connection refused')" in written
    assert ("Traceback" in written) is stack


ABOUT_JOBS = """
import asyncio, logging, sys, threading
from config.logging import bound, carried, configure_logging
configure_logging("api.node1.0", "INFO", form=sys.argv[1])
log = logging.getLogger("tasks.jobs.run")
log.info("nothing in particular")

async def call(job):
    with bound((job,)):
        await asyncio.sleep(0)
        log.info("a call of %s", job)

def start():
    return asyncio.gather(*(call(f"j{n}") for n in range(2)))

async def calls():
    await start()
    log.info("all calls")

jobs = {"j0"}
with bound(jobs):
    log.info("a batch")
    thread = threading.Thread(target=carried(lambda: log.info("a thread")))
    thread.start(); thread.join()
    jobs.add("j1")
    log.info("a larger batch")
    asyncio.run(calls())
    with bound([f"k{n}" for n in range(5)]):
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


def test_every_line_names_the_jobs_it_is_about_in_threads_and_coroutines_too() -> None:
    ends = [line.partition("tasks.jobs.run: ")[2] for line in written("text") if "tasks.jobs.run: " in line]
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


def test_as_json_each_line_is_an_object_with_the_same() -> None:
    lines = [json.loads(line) for line in written("json")]
    assert [line.get("job") for line in lines] == [
        None, "j0", "j0", "j0,j1", "j0", "j1", "j0,j1", "k0,k1,k2 and 2 more", "j0,j1", None,
    ]  # fmt: skip
    assert {(line["process"], line["logger"]) for line in lines} == {("api.node1.0", "tasks.jobs.run")}
    wrong = lines[-2]
    assert (wrong["level"], wrong["message"]) == ("ERROR", 'POST "/rm?token=***&x=1" is wrong, "/rm?token=***" too')
    assert "ZeroDivisionError" in wrong["exception"]
    assert all(line["time"].endswith("Z") for line in lines)
