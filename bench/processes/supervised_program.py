"""Run a program unattended: its output is shown and logged, a time limit applies, and leftover processes are killed."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

#: Seconds for a program to clean up after SIGINT, before it is killed.
GRACE_S = 60.0
#: Exit code of a program that exceeded its time limit, as `timeout` uses it.
ENDED = 124
_PR_SET_CHILD_SUBREAPER = 36


def run(
    argv: Sequence[str], log: Path, limit_s: float, environment: Mapping[str, str], grace_s: float = GRACE_S
) -> int:
    """Run the program. Returns its exit code, or `ENDED` after `limit_s` seconds; kills the processes that it left
    behind."""
    _adopt_orphans()
    before = set(psutil.Process().children(recursive=True))
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C reaches this process only, which forwards it
    )
    output = threading.Thread(target=_show_and_log, args=(process, log), daemon=True)
    output.start()
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return ENDED
    finally:
        _end(process, grace_s)
        _kill(set(psutil.Process().children(recursive=True)) - before)
        output.join(5)


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants instead of init, so that they can be found and killed. Linux only."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _show_and_log(process: "subprocess.Popen[bytes]", log: Path) -> None:
    assert process.stdout
    with log.open("wb") as file, process.stdout as lines:
        for line in lines:
            print(line.decode(errors="replace"), end="", flush=True)
            file.write(line)
            file.flush()


def _end(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """Send SIGINT, so that the program stops its own children; kill it after the grace period."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    if process.poll() is None:
        process.kill()
        process.wait()


def _kill(leftover: set[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(leftover), timeout=3)  # some end by themselves when their parent is gone
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            print(f"killed a leftover process: {' '.join(process.cmdline())[:120]}", file=sys.stderr, flush=True)
            process.kill()
    psutil.wait_procs(alive, timeout=10)
