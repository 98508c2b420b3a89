"""Limit of the threads held by long requests: open event streams, and submits that wait for results.

The remaining threads serve short requests.
"""

import threading
from collections.abc import Callable


class LongRequests:
    def __init__(self, threads: int) -> None:
        self.total = threads - max(1, threads // 8)
        self._left = threading.Semaphore(self.total)
        #: Returns False once this process stops; the web server sets its own flag here (`web/gunicorn_config.py`).
        self.is_serving: Callable[[], bool] = lambda: True

    def take(self) -> bool:
        """Reserve a thread, which `give_back` releases. Return False when the limit is reached."""
        return self._left.acquire(blocking=False)

    def give_back(self) -> None:
        self._left.release()
