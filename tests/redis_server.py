"""A real redis-server on a free port, which a test may stop, freeze or kill."""

import contextlib
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from redis import Redis
from redis.exceptions import AuthenticationError, BusyLoadingError, ConnectionError, ResponseError

from workers.embedded_redis import EmbeddedRedis, Role, free_port


class RedisServer:
    def __init__(self, folder: Path, role: Role = "state", *extra: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._argv = [*EmbeddedRedis(role, folder, self.port).command().argv, *extra]
        self._log = folder / "redis.log"
        self.process: subprocess.Popen[bytes] | None = None

    def client(self) -> Redis:
        return Redis.from_url(self.url, decode_responses=True)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with self.client() as client, contextlib.suppress(ConnectionError, BusyLoadingError):
                with contextlib.suppress(AuthenticationError, ResponseError):  # it answers, if only to refuse
                    client.ping()
                return
            time.sleep(0.02)
        raise AssertionError(f"redis-server did not start: {self._log.read_text()[-500:]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(20)
            self.process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
