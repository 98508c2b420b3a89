"""Run a single command on a temporary system: `python -m workers.up --run -- assay infer ...`.

The system is quiet (its log is `run.log` in the data folder), takes free ports where the usual ports are taken, and
ends with the command, and returns its exit code. Ctrl-C stops both, and jobs that the command left unfinished are
cancelled.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from config.logging import configure_logging
from config.settings import Settings, load_settings
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.errors import Permanent
from tasks.jobs.queries.listing import JobListing
from workers.devices.discovery import take_inventory
from workers.devices.requested_slots import requested_slots
from workers.processes.supervisor import EXIT_MISCONFIGURED
from workers.system.procfile import POLICIES
from workers.system.system import System

#: Processes that a single command does not use, and processes that only a benchmark uses.
UNUSED, FOR_BENCHMARKS = ("beat", "flower"), ("benchmark", POLICIES)
#: Seconds that the system may take until it is ready, and the command until it ends after Ctrl-C.
READY_S, END_S = 300.0, 5.0
EXIT_INTERRUPTED = 130
#: The client's sources: the client is not installed in the server's environment.
CLIENT = Path(__file__).parents[2] / "client" / "src"


def run_command(command: Sequence[str], procfile: Path) -> int:
    """Check the command, start a system for it and run it. Return its exit code."""
    if not command:
        print("No command was given: python -m workers.up --run -- assay infer ...", file=sys.stderr)
        return EXIT_MISCONFIGURED
    if code := _check(command):
        return code
    requested = requested_slots(os.environ, command)
    os.environ |= requested.environment
    # The command's user may read these folders anyway, and the system serves no other user.
    os.environ.setdefault("ASSAY_MODEL_PATHS", "/")
    settings = load_settings()
    if {"--skip-inference", "--skip_inference"} & set(command):  # needs no system
        slots = str(len(take_inventory(settings, os.environ).slots))
        environment = {"NUM_WORKERS": slots} | _client_environment()
        return subprocess.run(_argv(command), env=environment, check=False).returncode
    configure_logging("run", "ERROR")
    if requested.note:
        print(requested.note, file=sys.stderr)
    log_path = settings.data_dir / "run.log"
    if sys.stderr.isatty():
        print(f"Starting Assay for this command; its log is {log_path} ...", file=sys.stderr)
    with ExitStack() as stack:
        try:
            system = stack.enter_context(system_for(command, settings, procfile))
        except Permanent as error:
            raise Permanent(
                f"{error} A running system accepts the command itself: {' '.join(command[:2])} ..."
            ) from error
        log_path.write_bytes(b"")
        configure_logging("run", settings.log_level, log_path, settings.log_format)
        return _run_on(system, command, log_path) if system.start() else EXIT_INTERRUPTED


def system_for(command: Sequence[str], settings: Settings, procfile: Path) -> System:
    """Return a system of the processes that the command needs."""
    is_benchmark = list(command[:2]) == ["assay", "benchmark"]
    return System(
        settings,
        procfile,
        left_out=UNUSED if is_benchmark else (*UNUSED, *FOR_BENCHMARKS),
        replace_ports=True,
        log_path=str(settings.data_dir / "run.log"),
    )


def _run_on(system: System, command: Sequence[str], log_path: Path) -> int:
    """Start the command once the system is ready, and wait until it ends."""
    running: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + READY_S
    readiness = system.readiness()
    with _cancel_at_end(system.settings):
        try:
            while system.watch():
                for name in system.failed:
                    raise Permanent(f"{name} cannot run: {log_path} has the reason.")
                if running:
                    if (code := running.poll()) is not None:
                        return code if code >= 0 else 128 - code
                elif readiness.check():
                    running = subprocess.Popen(_argv(command), env=_client_environment() | _address(system.settings))
                elif time.monotonic() > deadline:
                    missing = "; ".join(readiness.missing)
                    raise Permanent(f"Assay is not ready after {READY_S:.0f} s; {log_path} has the reason: {missing}")
            return EXIT_INTERRUPTED
        finally:
            if running:
                _end(running)
            readiness.close()  # before Redis stops: a connected client would then wait for it


@contextmanager
def _cancel_at_end(settings: Settings) -> Iterator[None]:
    """Cancel, on leaving, the jobs that were submitted meanwhile and still run: no client waits for them."""
    celery = create_celery(settings)
    core = create_core(settings, celery)
    began = core.state.time()[0]
    try:
        yield
    finally:
        for job in JobListing(core.state, core.store).page(None, None, 200, None).jobs:
            if job.is_active and job.created_at >= began:
                core.cancel(job.id)
        celery.close()  # before Redis stops: a connected client would then wait for it
        core.state.close()


def _end(command: "subprocess.Popen[bytes]") -> None:
    """Wait for the command, then interrupt it, then kill it. Ctrl-C in a terminal has interrupted it already; a signal
    to this process alone has not."""
    for number, patience_s in ((None, 1.0), (signal.SIGINT, END_S), (signal.SIGKILL, END_S)):
        if number is not None and command.poll() is None:
            command.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            command.wait(patience_s)
            return


def _check(command: Sequence[str]) -> int:
    """Let the client check its own arguments before anything is started. Return its exit code; 0 if they are valid."""
    if command[0] != "assay":
        return 0
    return subprocess.run(_argv(command), env=_client_environment() | {"ASSAY_CHECK_ONLY": "1"}, check=False).returncode


def _argv(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "assay", *command[1:]] if command[0] == "assay" else list(command)


def _client_environment() -> dict[str, str]:
    """Return the environment in which the client can be imported."""
    path = os.pathsep.join(filter(None, (str(CLIENT), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": path}


def _address(settings: Settings) -> dict[str, str]:
    """Return the variables that point the client at this system."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return {"ASSAY_URL": f"http://{host}:{settings.port}", "ASSAY_EMBEDDED": "1"}
