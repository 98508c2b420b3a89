"""A real RabbitMQ node of Debian's package on ports of its own, which a test may stop or kill.

The package's own service is not used, and nothing outside the folder is read or written. Each test gets a virtual host
to itself, so that tests share a node, whose start takes five seconds.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from kombu import Connection

from tests.support.ports import free_ports
from tests.support.programs import PATIENCE_S, is_alive, wait_until

#: The server itself. The command of the same name on PATH is a wrapper that changes to the user of the service.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
MISSING = "" if SERVER.exists() and shutil.which("epmd") else "Debian's package rabbitmq-server is not installed"
#: Virtual hosts of a node: the maximum number of tests that use it.
HOSTS = 16


class RabbitMqServer:
    """Node with a data folder that survives `stop()`: `start()` afterwards loads queues and messages again."""

    def __init__(self, folder: Path, **parameters: int) -> None:
        """`parameters`: parameters of the Erlang application `rabbit`."""
        self._folder = folder
        self._port, self._distribution_port, self._epmd_port = free_ports(3)
        self._hosts = itertools.count()
        self._log = folder / "rabbitmq.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._write_configuration(parameters)

    def new_host(self) -> str:
        """Return the URL of a virtual host that no other test uses."""
        number = next(self._hosts)
        assert number < HOSTS, "raise HOSTS"
        return self._url(f"test{number}")

    def start(self) -> None:
        # Erlang would start its port mapper as a daemon, which would outlive the node.
        self._spawn(["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"])
        self._spawn([str(SERVER)])
        wait_until(self._answers, lambda: f"RabbitMQ answers; its log: {self._log.read_text()[-2000:]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End every process of the node. SIGKILL leaves the node no time to write anything."""
        while self._processes:
            process = self._processes.pop()  # the server before its port mapper
            below = self._processes_of(process)
            if number == signal.SIGKILL:
                for each in below:
                    with suppress(psutil.NoSuchProcess):  # it has ended with its parent
                        each.kill()
            else:
                process.send_signal(number)
            process.wait(PATIENCE_S)
            wait_until(lambda below=below: not any(map(is_alive, below)), "the processes of RabbitMQ have ended")

    @staticmethod
    def _processes_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        try:
            return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _url(self, host: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self._port}/{host}"

    def _answers(self) -> bool:
        assert self._processes[-1].poll() is None, f"RabbitMQ has ended: {self._log.read_text()[-2000:]}"
        with Connection(self._url("test0"), connect_timeout=2) as connection:
            try:
                connection.connect()
            except (*connection.connection_errors, OSError):
                return False
            return True

    def _spawn(self, argv: list[str]) -> None:
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                argv, env=self._environment(), cwd=self._folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._processes.append(process)

    def _environment(self) -> dict[str, str]:
        """Return the environment that keeps every file in the folder and every port on loopback."""
        folder = self._folder
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),  # of the Erlang cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_NODENAME": f"assay-test-{self._port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def _write_configuration(self, parameters: dict[str, int]) -> None:
        given = {
            "listeners.tcp.1": f"127.0.0.1:{self._port}",
            "load_definitions": self._folder / "definitions.json",
            "disk_free_limit.absolute": "1MB",
            "log.console": "true",
            "log.file": "false",
        }
        (self._folder / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in given.items()))
        terms = ", ".join(f"{{{name}, {value}}}" for name, value in parameters.items())
        (self._folder / "advanced.config").write_text(f"[{{rabbit, [{terms}]}}].\n")
        (self._folder / "enabled_plugins").write_text("[].\n")
        hosts = [f"test{number}" for number in range(HOSTS)]
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        definitions = {
            "vhosts": [{"name": host} for host in hosts],
            "users": [{"name": "guest", "password": "guest", "tags": ""}],
            "permissions": [{"user": "guest", "vhost": host} | everything for host in hosts],
        }
        (self._folder / "definitions.json").write_text(json.dumps(definitions))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(signal.SIGKILL)
