"""Event that a signal handler may set."""

from contextlib import suppress
from queue import Empty, SimpleQueue


class SignalEvent:
    """Reentrant event for a single waiting thread.

    Not threading.Event: a waiting thread holds the lock of its event for moments, and a handler that interrupts the
    thread at that time, and sets the event, would deadlock on the lock. SimpleQueue is reentrant for this purpose.
    """

    def __init__(self) -> None:
        self._signals: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self._signals.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until the event is set, or was set since the last wait. Return False if the seconds pass first."""
        try:
            self._signals.get(timeout=max(0.0, seconds))
        except Empty:
            return False
        with suppress(Empty):
            while True:
                self._signals.get_nowait()
        return True
