"""The system on this machine: its Redis servers and the processes of the Procfile, started and stopped together.

`workers.system.foreground` and `workers.system.one_command` are its two uses; `python -m workers.up` runs them.
"""

import fcntl
import os
import sys
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from config.settings import Settings, load_settings
from tasks.connections import wait_for_redis
from tasks.errors import Permanent
from workers.devices.discovery import take_inventory
from workers.processes.embedded_redis import EmbeddedRedis, Role
from workers.processes.ports import free_port
from workers.processes.supervisor import Supervisor
from workers.system.ports import replace_taken_ports, required_ports
from workers.system.procfile import JUDGE, POLICIES, read_procfile
from workers.system.readiness import Readiness

#: Seconds between two looks at the processes. A signal is handled at once.
POLL_S = 0.2


class System:
    """Redis servers and Procfile processes of this machine; each is restarted with backoff when it dies.

    A context manager. Entering it locks the data folder, so that no second system uses it; leaving it stops every
    process, and Redis last.
    """

    def __init__(
        self,
        settings: Settings,
        procfile: Path,
        *,
        left_out: Collection[str] = (),
        replace_ports: bool = False,
        log_path: str = "",
    ) -> None:
        """`left_out`: Procfile names not to start. `replace_ports`: use free ports in place of taken ones that no
        setting names. `log_path`: file for the output of the processes, instead of this process's own output."""
        self.settings = settings
        self._procfile = procfile
        self._left_out = {*left_out}
        if not settings.uses_development_api:
            self._left_out.add(JUDGE)
        if settings.policy_urls:
            self._left_out.add(POLICIES)
        self._replace_ports = replace_ports
        self._log_path = log_path
        # Redis with a full disk refuses to end. Launchers need time to kill their own children.
        self._servers, self._processes = Supervisor(stop_grace_s=10), Supervisor(settings.stop_grace_s + 5, kill_s=5)

    def __enter__(self) -> Self:
        self._lock = lock_folder(self.settings.data_dir)
        self._processes.handle_signals()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._processes.shutdown()
        self._servers.shutdown()  # last: a process that stops may still write to Redis
        self._lock.close()

    @cached_property
    def slots(self) -> int:
        """Number of device slots of this machine."""
        return len(take_inventory(self.settings, os.environ).slots)

    @property
    def policy_servers(self) -> int:
        """Number of policy servers that the system starts: a server per device slot, or 0."""
        return 0 if POLICIES in self._left_out else self.slots

    @property
    def awaited_policy_servers(self) -> int:
        """Number of policy servers that readiness waits for: only the development policy loads within seconds, other
        policy servers may load their models for many minutes."""
        return self.policy_servers if self.settings.uses_development_policy else 0

    @property
    def is_running(self) -> bool:
        """Whether a process runs, or will be restarted."""
        return bool(self._processes.children)

    @property
    def failed(self) -> dict[str, int]:
        """Exit codes of the processes that ended for good, by name."""
        return self._processes.failed

    def start(self) -> bool:
        """Start Redis, wait for it, and start the processes. Return False if a signal asks to stop meanwhile."""
        ports = required_ports(self.settings, self.policy_servers, "flower" not in self._left_out)
        if self._replace_ports:
            os.environ |= replace_taken_ports(self.settings, ports)
        else:
            for each in ports:
                each.require_free()
        os.environ |= self._start_redis()
        self.settings = load_settings()
        if not wait_for_redis(self.settings.redis_url, self._pause_for_redis):
            return False
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        for command in read_procfile(self._procfile):
            if command.name not in self._left_out:
                self._processes.start(replace(command, log_path=self._log_path))
        return True

    def readiness(self) -> Readiness:
        """Return the check that tells when every part answers."""
        return Readiness(self.settings, set(self._processes.children), self.slots, self.awaited_policy_servers)

    def watch(self) -> bool:
        """Restart processes that died, then pause. Return False once a signal asks to stop."""
        self._servers.poll()
        self._processes.poll()
        return not self._processes.pause(POLL_S)

    def _start_redis(self) -> dict[str, str]:
        """Start the Redis servers that no setting names. Return their URLs as environment variables."""
        if "redis_url" in self.settings.model_fields_set:
            return {}
        memory_mb: dict[Role, int] = {"state": self.settings.embedded_state_mb}
        if "cache_url" not in self.settings.model_fields_set:
            memory_mb["cache"] = self.settings.embedded_cache_mb
        urls = {}
        for role, megabytes in memory_mb.items():
            folder = self.settings.data_dir / f"redis-{role}"
            server = EmbeddedRedis(role, folder, free_port(), megabytes)
            self._servers.start(server.command())
            urls["ASSAY_REDIS_URL" if role == "state" else "ASSAY_CACHE_URL"] = server.url
        return urls

    def _pause_for_redis(self, seconds: float) -> bool:
        """Pause; return True if a signal asks to stop. Raises Permanent if a Redis server of ours cannot start."""
        self._servers.poll()
        for child in self._servers.children.values():
            if child.deaths >= 2:
                lines = Path(child.command.log_path).read_text(errors="replace").splitlines()
                raise Permanent(f"{child.command.name} cannot start; {child.command.log_path} ends with: {lines[-1]}")
        return self._processes.pause(seconds)


def lock_folder(folder: Path) -> IO[str]:
    """Lock the data folder until the returned file is closed: two Redis servers on one data file would corrupt it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a+")
    except OSError as error:
        raise Permanent(
            f"The folder {folder} cannot be used ({error.strerror}): set ASSAY_DATA_DIR to a writable folder."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Permanent(
            f"The folder {folder} is used by another `make up`: stop that one, or set ASSAY_DATA_DIR to another folder."
        ) from error
    return lock
