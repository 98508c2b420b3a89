"""Bounded calls: run calls that may hang, such as reads of a network mount, in helper threads with a timeout.

After a timeout the hung call keeps its helper thread, since Python cannot interrupt it, and further calls are refused
at once for a while, which doubles with each timeout. So a storage that hangs costs a caller a single timeout, and not
one for each call. A process whose thread hangs inside the kernel may not be able to exit until the call returns.
"""

import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

T = TypeVar("T")

#: Seconds for which calls are refused after a timeout: at first, and at most.
FIRST_REFUSAL_S, MOST_REFUSAL_S = 10.0, 300.0


class CallRefused(TimeoutError):
    """An earlier call still hangs, so this call was not tried."""


class BoundedCalls:
    """Thread-safe. A forked child starts helper threads of its own."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._reset()

    def run(self, call: Callable[[], T]) -> T:
        """Return the result of `call`, or raise its exception. Raise TimeoutError if it does not return in time."""
        if self._pid != os.getpid():
            self._reset()
        if self._hung and time.monotonic() < self._refused_until:
            raise CallRefused("an earlier call still hangs")
        running = self._start(call)
        try:
            result, error = running.replies.get(timeout=self._timeout_s)
        except Empty:
            self._give_up(running)
            raise TimeoutError(f"no answer within {self._timeout_s:g} s") from None
        if error is not None:
            raise error
        return cast(T, result)

    def start(self, call: Callable[[], object]) -> None:
        """Run `call` in a helper thread without waiting for it. Its exception is ignored."""
        if self._pid != os.getpid():
            self._reset()
        self._start(call)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_Call]] = []
        self._hung = 0
        self._refused_until = float("-inf")
        self._refusal_s = FIRST_REFUSAL_S

    def _start(self, call: Callable[[], Any]) -> "_Call":
        running = _Call(call)
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = SimpleQueue()
            threading.Thread(target=self._serve, args=(calls,), name="storage", daemon=True).start()
        calls.put(running)
        return running

    def _give_up(self, running: "_Call") -> None:
        with self._lock:
            if not running.has_ended:
                running.is_abandoned = True
                self._hung += 1
            self._refused_until = time.monotonic() + self._refusal_s
            self._refusal_s = min(2 * self._refusal_s, MOST_REFUSAL_S)

    def _serve(self, calls: "SimpleQueue[_Call]") -> None:
        while True:
            running = calls.get()
            reply: tuple[Any, BaseException | None]
            try:
                reply = running.call(), None
            except BaseException as error:  # noqa: BLE001  # the caller raises it
                reply = None, error
            with self._lock:
                running.has_ended = True
                if running.is_abandoned:
                    self._hung -= 1
                if not self._hung:
                    self._refusal_s = FIRST_REFUSAL_S
            self._idle.append(calls)
            running.replies.put(reply)
            del running, reply  # an idle thread must not keep a result alive


class _Call:
    __slots__ = ("call", "has_ended", "is_abandoned", "replies")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.replies: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.has_ended = False
        self.is_abandoned = False
