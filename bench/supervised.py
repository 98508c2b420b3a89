"""A program that nobody watches: shown and logged while it runs, ended after a bound, and nothing of it is left."""

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

#: Seconds that a program has to clean up after it was told to end.
GRACE_S = 60.0
#: The code of a program that was ended, as of `timeout`.
ENDED = 124
_PR_SET_CHILD_SUBREAPER = 36


def run(
    argv: Sequence[str], log: Path, bound_s: float, environment: Mapping[str, str], grace_s: float = GRACE_S
) -> int:
    """Its exit code; `ENDED` if it took longer than the bound. Whatever it started and left behind is killed."""
    _adopt_orphans()
    before = set(psutil.Process().children(recursive=True))
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C is ours to pass on
    )
    show = threading.Thread(target=_show, args=(process, log), daemon=True)
    show.start()
    try:
        return process.wait(bound_s)
    except subprocess.TimeoutExpired:
        return ENDED
    finally:
        _end(process, grace_s)
        _kill(set(psutil.Process().children(recursive=True)) - before)
        show.join(5)


def _adopt_orphans() -> None:
    """Processes whose parent died become ours instead of init's, so that we find them. Linux only; elsewhere those
    stay."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _show(process: "subprocess.Popen[bytes]", log: Path) -> None:
    assert process.stdout
    with log.open("wb") as file, process.stdout as lines:
        for line in lines:
            print(line.decode(errors="replace"), end="", flush=True)
            file.write(line)
            file.flush()


def _end(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """As Ctrl-C does, so that it ends what it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    if process.poll() is None:
        process.kill()
        process.wait()


def _kill(left: set[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(list(left), timeout=3)  # some end when they notice that nobody is there
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            print(f"left running, and killed: {' '.join(process.cmdline())[:120]}", file=sys.stderr, flush=True)
            process.kill()
    psutil.wait_procs(alive, timeout=10)
