"""A bell that a signal handler may ring."""

from contextlib import suppress
from queue import Empty, SimpleQueue


class SignalEvent:
    """For one waiting thread.

    Not threading.Event: the thread that waits on one holds its lock for moments, and a handler that interrupts it just
    then, and rings, waits for that lock for ever. SimpleQueue is made for this.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        self._rings.put(None)

    def wait(self, seconds: float) -> bool:
        """Until it rings, or has rung since the last wait; False when it did not within these seconds."""
        try:
            self._rings.get(timeout=max(0.0, seconds))
        except Empty:
            return False
        with suppress(Empty):
            while True:
                self._rings.get_nowait()
        return True
