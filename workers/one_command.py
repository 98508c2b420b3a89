"""One command on a system of its own, where nothing is up: `python -m workers.up --run -- assay infer ...`.

The system is quiet (its log is `run.log` in the data folder), takes other ports where the usual ones are taken, and
ends with the command, whose exit code it returns. Ctrl-C stops both; what the command has not seen the end of is
cancelled.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from config.logging import configure_logging
from config.settings import Settings, SettingsError, load_settings, variable
from tasks.app import create_celery
from tasks.connections import wait_for_redis
from tasks.errors import AssayError, Permanent
from tasks.jobs.core import create_core
from tasks.jobs.listing import Jobs
from tasks.registry import Worker
from workers import up
from workers.devices import take_inventory
from workers.embedded_redis import RedisServerMissing, free_ports, is_free
from workers.requested_slots import requested_slots
from workers.supervision import EXIT_MISCONFIGURED, Supervisor

log = logging.getLogger(__name__)

#: Processes that nobody looks at during one command, and those that only a benchmark needs.
LEFT_OUT, MEASURED = ("beat", "flower"), ("benchmark", up.POLICIES)
#: Seconds between two looks at what runs.
LOOK_S = 0.2
#: Seconds the system may take to be ready, and the command to end after Ctrl-C.
READY_S, END_S = 300.0, 5.0
EXIT_INTERRUPTED = 130
#: The client, which is not installed here.
CLIENT = Path(__file__).parent.parent / "client" / "src"


class OneCommand:
    def __init__(self, settings: Settings, argv: Sequence[str]) -> None:
        self._settings, self._argv = settings, argv
        self._log = settings.data_dir / "run.log"
        # Redis with a full disk refuses to end; launchers need time to kill theirs.
        self._servers, self._processes = Supervisor(stop_grace_s=10), Supervisor(settings.stop_grace_s + 5, kill_s=5)
        self._command: subprocess.Popen[bytes] | None = None

    @property
    def _measures(self) -> bool:
        return list(self._argv[:2]) == ["assay", "benchmark"]

    def run(self, procfile: Path) -> int:
        try:
            lock = up.lock_folder(self._settings.data_dir)
        except Permanent as error:
            raise Permanent(
                f"{error} A system that is up takes the command itself: {' '.join(self._argv[:2])} ..."
            ) from error
        self._processes.handle_signals()
        try:
            self._log.write_bytes(b"")
            configure_logging("run", self._settings.log_level, self._log, self._settings.log_format)
            os.environ |= other_ports(self._settings, self.policies)
            self._settings = up.start_redis(load_settings(), self._servers)
            if not wait_for_redis(self._settings.redis_url, self._waits):
                return EXIT_INTERRUPTED
            self._start(procfile)
            return self._watch()
        finally:
            self._end_command()
            self._processes.shutdown()
            self._servers.shutdown()  # last: what stops may still have something to write
            lock.close()

    @cached_property
    def _slots(self) -> int:
        return len(take_inventory(self._settings, os.environ).slots)

    @property
    def policies(self) -> int:
        """Policy servers that are started: one per device slot, for a benchmark where none are given."""
        return self._slots if self._measures and not self._settings.policy_urls else 0

    @property
    def awaited_policies(self) -> int:
        """Others than the development policy may load their models for many minutes: nobody waits for those."""
        return self.policies if self._settings.uses_development_policy else 0

    def _waits(self, seconds: float) -> bool:
        return up.check_servers(self._servers) or self._processes.pause(seconds)

    def _start(self, procfile: Path) -> None:
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        for command in up.read_procfile(procfile):
            is_needed = command.name not in (LEFT_OUT if self._measures else (*LEFT_OUT, *MEASURED))
            wanted = {up.JUDGE: self._settings.uses_development_api, up.POLICIES: bool(self.policies)}
            if is_needed and wanted.get(command.name, True):
                self._processes.start(replace(command, log_path=str(self._log)))

    def _watch(self) -> int:
        """Start the command when all is ready, and wait for its end."""
        readiness = up.Readiness(self._settings, set(self._processes.children))
        celery = create_celery(self._settings)
        core = create_core(self._settings, celery)
        began, deadline, looked = core.state.time()[0], time.monotonic() + READY_S, 0.0
        try:
            while not self._processes.pause(LOOK_S):
                self._servers.poll()
                self._processes.poll()
                for name in self._processes.failed:
                    raise Permanent(f"{name} cannot run: {self._log} says why.")
                if self._command:
                    if (code := self._command.poll()) is not None:
                        return code if code >= 0 else 128 - code
                elif time.monotonic() - looked > up.LOOK_S:
                    looked = time.monotonic()
                    missing = [
                        *_missing(readiness),
                        *lacking(core.registry.workers(), self._slots, self.awaited_policies),
                    ]
                    if not missing:
                        self._command = subprocess.Popen(_argv(self._argv), env=self._environment())
                    elif looked > deadline:
                        told = "; ".join(missing)
                        raise Permanent(f"Assay is not ready after {READY_S:.0f} s; {self._log} says why: {told}")
            return EXIT_INTERRUPTED
        finally:
            self._end_command()
            for job in Jobs(core.state, core.store).page(None, None, 200, None).jobs:
                if job.is_active and job.created_at >= began:
                    core.cancel(job.id)  # nobody comes back for it
            readiness.close()  # before Redis ends: what is connected to it then waits for it
            celery.close()
            core.state.close()

    def _environment(self) -> dict[str, str]:
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return _client_environment() | {"ASSAY_URL": f"http://{host}:{self._settings.port}", "ASSAY_EMBEDDED": "1"}

    def _end_command(self) -> None:
        """Ctrl-C in a terminal has reached it, too; a signal to us alone has not."""
        if self._command is None:
            return
        for number in (None, signal.SIGINT, signal.SIGKILL):
            if number is not None and self._command.poll() is None:
                self._command.send_signal(number)
            try:
                self._command.wait(1.0 if number is None else END_S)
                return
            except subprocess.TimeoutExpired:
                continue


def _missing(readiness: up.Readiness) -> list[str]:
    try:
        return readiness.missing()
    except AssayError as error:
        return [str(error)]


def lacking(workers: Sequence[Worker], slots: int, policies: int) -> list[str]:
    """What is not there yet of so many device slots, and of so many that have their policy server."""
    ready = [each for each in workers if each.pool == "device" and each.state == "ready"]
    served = sum(any(server.connected for server in each.policies) for each in ready)
    found = {"device slots": (len(ready), slots), "policy servers": (served, policies)}
    return [f"{name}: {there} of {wanted}" for name, (there, wanted) in found.items() if there < wanted]


def other_ports(settings: Settings, policies: int) -> dict[str, str]:
    """Where somebody listens on a port that is needed and that nobody has named, another one is used: as variables.
    Raises Permanent where somebody has named it."""
    needed = {"port": 1, "development_api_port": int(settings.uses_development_api), "policy_port": policies}
    found = {}
    for field, number in needed.items():
        first = getattr(settings, field)
        ports = range(first, first + number)
        if field in settings.model_fields_set:
            for port in ports:
                up.require_free_port("127.0.0.1", port, variable(field))
        elif not all(is_free(port) for port in ports):
            found[variable(field)] = str(free_ports(number))
    return found


def _argv(command: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "assay", *command[1:]] if command[0] == "assay" else list(command)


def _client_environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(CLIENT), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PYTHONPATH": path}


def _is_wrong(command: Sequence[str]) -> int:
    """What is wrong with the command, as its exit code: said before anything is started for it."""
    if command[0] != "assay":
        return 0
    return subprocess.run(_argv(command), env=_client_environment() | {"ASSAY_CHECK_ONLY": "1"}, check=False).returncode


def main(argv: Sequence[str]) -> int:
    command = list(argv[1:] if argv[:1] == ["--"] else argv)
    if not command:
        print("There is no command: python -m workers.up --run -- assay infer ...", file=sys.stderr)
        return EXIT_MISCONFIGURED
    try:
        if code := _is_wrong(command):
            return code
        asked = requested_slots(os.environ, command)
        os.environ |= asked.environment
        # Whoever runs the command may read these folders anyway, and the system serves nobody else.
        os.environ.setdefault("ASSAY_MODEL_PATHS", "/")
        settings = load_settings()
        if {"--skip-inference", "--skip_inference"} & set(command):
            slots = str(len(take_inventory(settings, os.environ).slots))
            return subprocess.run(
                _argv(command), env={"NUM_WORKERS": slots} | _client_environment(), check=False
            ).returncode
        configure_logging("run", "ERROR")
        if asked.note:
            print(asked.note, file=sys.stderr)
        if sys.stderr.isatty():
            print(f"Starting Assay for this command; its log is {settings.data_dir / 'run.log'} ...", file=sys.stderr)
        return OneCommand(settings, command).run(Path("Procfile"))
    except (SettingsError, AssayError, RedisServerMissing) as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    except KeyboardInterrupt:  # before the handlers were there
        return EXIT_INTERRUPTED
