"""Base of the Assay adapters: a web process, a launcher with two workers, and the HTTP client, as users run them."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import psutil
from assay import Assay
from assay.errors import AssayError

from bench.peers.adapters.peer import Peer, PeerSetup
from bench.peers.adapters.worker_groups import WorkerGroups
from workers.processes.ports import free_port

WORKERS = 2


class AssaySystem(Peer):
    #: Pool of the workers.
    pool: ClassVar[str]

    def __init__(self, setup: PeerSetup) -> None:
        super().__init__(setup)
        port = free_port()
        environment = {
            "ASSAY_REDIS_URL": setup.redis_url,
            "ASSAY_STORAGE_URL": (setup.folder / "storage").as_uri(),
            "ASSAY_PORT": str(port),
            "ASSAY_NODE": "bench",
            "ASSAY_LOG_LEVEL": "WARNING",
        }
        web = ["-m", "gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app"]
        launch = ["-m", "workers.launch", self.pool]
        self._groups = WorkerGroups(setup.folder, [launch, web], **environment | self.settings())
        self.log = self._groups.log
        self.client = Assay(f"http://127.0.0.1:{port}")

    @abstractmethod
    def settings(self) -> dict[str, str]:
        """Return settings for the processes, in addition to addresses and folders."""

    @contextmanager
    def running(self) -> Iterator[None]:
        with self.client, self._groups.running(self._is_ready):
            yield

    def _is_ready(self) -> bool:
        try:
            return [worker["state"] for worker in self.client.workers()] == ["ready"] * WORKERS
        except AssayError:
            return False

    def kill_targets(self) -> list[int]:
        """Return the process id of a worker; the launcher restarts it."""
        return [psutil.Process(self._groups.first()).children()[0].pid]
