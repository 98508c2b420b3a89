"""Threads that requests may hold for long: an open event stream, a submit that waits. The rest serve everybody else."""

import threading
from collections.abc import Callable


class Seats:
    def __init__(self, threads: int) -> None:
        self.total = threads - max(1, threads // 8)
        self._left = threading.Semaphore(self.total)
        #: Whether this process goes on; the web server replaces it by its own flag (`web/gunicorn_config.py`).
        self.is_serving: Callable[[], bool] = lambda: True

    def take(self) -> bool:
        """A seat, to be given back; False when all are taken."""
        return self._left.acquire(blocking=False)

    def give_back(self) -> None:
        self._left.release()
