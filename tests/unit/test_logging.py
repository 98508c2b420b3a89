"""What processes write to their log."""

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
