"""Hosts of a private network: network namespaces of Linux, connected by a switch (a bridge in a namespace of its own).

A host has its own addresses, ports and host name, and shares the files and process ids of this machine. A host that is
cut off hears nothing from the others: its connections are not closed, its packets vanish. Not covered: packet loss,
delays and name resolution.
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

import psutil
import pytest

from tests.support.programs import Program, wait_until

#: Addresses of the hosts, in the order of their names. They exist inside the namespaces only.
ADDRESS = "10.213.0.{}"
#: Names of the namespaces: the pid of the test process, a random part, and the name of the host.
_NAME = re.compile(r"assay-test-(\d+)-[0-9a-f]+-[a-z0-9-]+")
_CLONE_NEWNET = 0x40000000


class Host:
    def __init__(self, name: str, address: str, namespace: str, switch: str) -> None:
        self.name = name
        self.address = address
        self.is_connected = True
        self._namespace = namespace
        self._switch = switch

    def start(self, run: Callable[..., Program], *argv: str, **environment: str) -> Program:
        """Start a program on this host. `run` starts programs, like the fixture of this name."""
        named = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'  # visible in the program's own UTS namespace only
        return run(
            "ip", "netns", "exec", self._namespace, "unshare", "--uts", "sh", "-c", named, self.name, *argv,
            **environment,
        )  # fmt: skip

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move this thread to the host: the sockets that it opens, and the programs that it starts, belong to it."""
        with _namespace_of_thread().open("rb") as before, Path("/run/netns", self._namespace).open("rb") as inside:
            _enter(inside.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def cut_off(self) -> None:
        _ip("-n", self._switch, "link", "set", self.name, "down")
        self.is_connected = False

    def reconnect(self) -> None:
        _ip("-n", self._switch, "link", "set", self.name, "up")
        self.is_connected = True

    def kill(self) -> None:
        """Kill every process of the host, as a loss of power does. The other hosts get no message of it."""
        if self.is_connected:
            self.cut_off()

        def kill() -> bool:
            found = self.processes()
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            return not found

        wait_until(kill, f"no process of {self.name} is left")

    def processes(self) -> list[psutil.Process]:
        """Return the live processes of the host, but not this process, of which a thread may have entered it."""
        found = []
        for pid in map(int, _ip("netns", "pids", self._namespace).split()):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


class Network:
    """Use as `with Network("web", "worker") as network:`. The end of the block kills every process of the hosts."""

    def __init__(self, *names: str) -> None:
        prefix = f"assay-test-{os.getpid()}-{token_hex(3)}"
        self._switch = f"{prefix}-switch"
        self.hosts = {
            name: Host(name, ADDRESS.format(number), f"{prefix}-{name}", self._switch)
            for number, name in enumerate(names, 1)
        }
        self._namespaces = {self._switch: ""} | {f"{prefix}-{name}": name for name in names}

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def __enter__(self) -> Self:
        _remove_abandoned()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        for namespace in self._namespaces:
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for namespace, name in self._namespaces.items():
            if not name:
                continue
            peer = ("peer", "name", "eth0", "netns", namespace)
            _ip("-n", self._switch, "link", "add", name, "type", "veth", *peer)
            _ip("-n", self._switch, "link", "set", name, "master", "switch", "up")
            _ip("-n", namespace, "address", "add", f"{self.hosts[name].address}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        existing = _namespaces()
        for namespace in self._namespaces:
            if namespace in existing:
                _remove(namespace)


def require_namespaces() -> None:
    """Skip the test, with the reason, on a machine where network namespaces cannot be made."""
    if reason := _obstacle():
        pytest.skip(f"network namespaces cannot be made: {reason}")


def _obstacle() -> str:
    if missing := [name for name in ("ip", "unshare") if not shutil.which(name)]:
        return f"the command `{missing[0]}` is not installed"
    if os.geteuid() != 0:
        return "only root may make them"
    try:
        with Network("probe") as network, network["probe"].entered():
            socket.create_server((network["probe"].address, 0)).close()
    except (subprocess.CalledProcessError, OSError) as error:
        return str(getattr(error, "stderr", "") or error).strip()
    return ""


def _ip(*arguments: str) -> str:
    """Run iproute2's `ip`. Raises CalledProcessError with its message in `stderr`."""
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _remove_abandoned() -> None:
    """Remove the namespaces of test processes that were killed, with the processes inside."""
    for namespace in _namespaces():
        if (match := _NAME.fullmatch(namespace)) and not psutil.pid_exists(int(match[1])):
            _remove(namespace)


def _remove(namespace: str) -> None:
    """Kill the processes of a namespace and remove it; its end of each link goes with it."""
    with suppress(subprocess.CalledProcessError):  # a second test process has just removed it
        for pid in map(int, _ip("netns", "pids", namespace).split()):
            if pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        _ip("netns", "delete", namespace)


def _namespace_of_thread() -> Path:
    return Path(f"/proc/self/task/{threading.get_native_id()}/ns/net")


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns exists from Python 3.12 on
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")
