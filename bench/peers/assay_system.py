"""Assay as its users have it: a web process, a launcher with two workers, and the client over HTTP."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import psutil
from assay import Assay
from assay.errors import AssayError

from bench.peers.peer import Peer, Place
from bench.peers.worker_groups import WorkerGroups
from workers.embedded_redis import free_port

WORKERS = 2


class AssaySystem(Peer):
    #: Of its workers.
    pool: ClassVar[str]

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        port = free_port()
        environment = {
            "ASSAY_REDIS_URL": place.redis_url,
            "ASSAY_STORAGE_URL": (place.folder / "storage").as_uri(),
            "ASSAY_PORT": str(port),
            "ASSAY_NODE": "bench",
            "ASSAY_LOG_LEVEL": "WARNING",
        }
        web = ["-m", "gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app"]
        launch = ["-m", "workers.launch", self.pool]
        self._groups = WorkerGroups(place.folder, [launch, web], **environment | self.settings())
        self.log = self._groups.log
        self.client = Assay(f"http://127.0.0.1:{port}")

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """Of its processes, beyond where things are."""

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.client, self._groups.running(self._is_ready):
            yield

    def _is_ready(self) -> bool:
        try:
            return [worker["state"] for worker in self.client.workers()] == ["ready"] * WORKERS
        except AssayError:
            return False

    def victims(self) -> list[int]:
        """One of its workers; the launcher starts another."""
        return [psutil.Process(self._groups.first()).children()[0].pid]
