"""Puts the files of a stopped state Redis back to an earlier moment, and reads a moment from a lagging replica.

Works for the append-only file of Redis 6 (a single file) and of later versions (a folder, whose last file grows).
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from workers.processes.embedded_redis import find_redis_server
from workers.processes.ports import free_port

#: Append-only file of Redis 6, and folder of append-only files of later versions.
SINGLE, FOLDER = "appendonly.aof", "appendonlydir"
#: Seconds for a replica to follow, and to write its data.
REPLICA_S = 30.0


def growing_file(folder: Path) -> Path | None:
    """Return the file that Redis appends to; None if there is none yet."""
    files = [*(folder / FOLDER).glob("*.incr.aof"), folder / SINGLE]
    return next(
        iter(sorted((file for file in files if file.exists()), key=lambda file: file.stat().st_mtime)[-1:]), None
    )


def cut_back(file: Path, size: int, inode: int) -> bool:
    """Cut the file back to an earlier size. False if it has no more than that, or Redis has rewritten it since."""
    with suppress(FileNotFoundError):
        now = file.stat()
        if now.st_ino == inode and now.st_size > size:
            with file.open("r+b") as opened:
                opened.truncate(size)
            return True
    return False


def install(folder: Path, snapshot: Path) -> None:
    """Replace the append-only files by a snapshot: Redis reads a snapshot as the beginning of an append-only file."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    shutil.copyfile(snapshot, folder / SINGLE)


class Replica:
    """A replica of the state Redis, for the length of a fault."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._client = Redis(port=port, socket_timeout=REPLICA_S)

    def follow(self) -> bool:
        """Wait until the replica follows the primary. Returns whether it does."""
        deadline = time.monotonic() + REPLICA_S
        while time.monotonic() < deadline:
            with suppress(RedisError):
                if self._client.info("replication")["master_link_status"] == "up":
                    return True
            time.sleep(0.02)
        return False

    def knows(self, key: str) -> bool:
        return bool(self._client.exists(key))

    def cut_off(self) -> None:
        """Stop following: the replica lacks everything that the primary writes from now on."""
        self._client.replicaof("NO", "ONE")

    def save(self) -> Path:
        """Write the data to a snapshot. Returns its path."""
        self._client.save()
        return self._folder / "dump.rdb"


@contextmanager
def replica_of(port: int, folder: Path) -> Iterator[Replica]:
    """Start a replica of the Redis at this port, and stop it afterwards."""
    own = free_port()
    argv = [find_redis_server(), "--bind", "127.0.0.1", "--port", str(own), "--dir", str(folder), "--save", ""]
    argv += ["--appendonly", "no", "--replicaof", "127.0.0.1", str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Replica(folder, own)
    finally:
        process.kill()
        process.wait()
