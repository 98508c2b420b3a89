"""A real redis-server on a port of its own, which a test may stop, freeze or kill."""

import contextlib
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import AuthenticationError, BusyLoadingError, ConnectionError, ResponseError

from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, wait_until
from workers.processes.embedded_redis import EmbeddedRedis, Role


class RedisServer:
    """Server with a data folder that survives `stop()`: `start()` afterwards loads the data again."""

    def __init__(
        self, folder: Path, role: Role = "state", *extra: str, address: str = "127.0.0.1", password: str = ""
    ) -> None:
        """`address`: beyond loopback, Redis refuses other hosts without a password."""
        self.port = free_port()
        self.url = f"redis://{f':{password}@' if password else ''}{address}:{self.port}/0"
        # Without fsync: a killed Redis loses no write that it has answered, and a busy disk does not stop its commands.
        own = ["--appendfsync", "no", "--bind", address, *(["--requirepass", password] if password else [])]
        self._argv = [*EmbeddedRedis(role, folder, self.port).command().argv, *own, *extra]
        self._log = folder / "redis.log"
        self.process: subprocess.Popen[bytes] | None = None

    def client(self) -> Redis:
        return Redis.from_url(self.url, decode_responses=True, socket_timeout=PATIENCE_S)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        wait_until(self._answers, lambda: f"redis-server answers; its log: {self._log.read_text()[-500:]}")

    def _answers(self) -> bool:
        """Whether the server answers a command; an answer that asks for a password counts."""
        assert self.process
        assert self.process.poll() is None, f"redis-server has ended: {self._log.read_text()[-500:]}"
        with self.client() as client, contextlib.suppress(ConnectionError, BusyLoadingError):
            with contextlib.suppress(AuthenticationError, ResponseError):
                client.ping()
            return True
        return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(PATIENCE_S)
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
