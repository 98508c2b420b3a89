"""A chat API on a free port, in a thread with its own event loop. A test may let it limit, fail, hang or refuse."""

import asyncio
import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.support.programs import PATIENCE_S

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


@dataclass(frozen=True)
class Fault:
    """An answer that is no completion."""

    status: int = 500
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    drip_s: float = 0.0
    """Seconds between two bytes of an answer that begins at once and never ends."""


@dataclass
class Seen:
    at: float
    body: dict[str, Any]
    headers: dict[str, str]
    """By name in lower case."""


class ChatApi:
    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.gather = 0
        """The API answers no call before this number of calls was in flight at the same time."""
        self.seen: list[Seen] = []
        self.answered = self.left = self.in_flight = self.peak = 0
        self.connections: set[object] = set()
        self.fault: Callable[[dict[str, Any]], Fault | None] = lambda _: None
        self.headers: dict[str, str] = {}
        self.reply: dict[str, Any] = {}
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def fail_at_random(self, seed: int = 1, **shares: float) -> None:
        """Answer a random share of the calls with an error status: `s429=0.2` is a fifth of them."""
        chance = random.Random(seed)

        def fault(_: dict[str, Any]) -> Fault | None:
            draw = chance.random()
            for name, share in shares.items():
                if draw < share:
                    return Fault(int(name[1:]))
                draw -= share
            return None

        self.fault = fault

    @property
    def times(self) -> list[float]:
        return sorted(each.at for each in self.seen)

    def most_in_any(self, window_s: float) -> int:
        """Return the number of calls in the fullest window of this length."""
        times, first, most = self.times, 0, 0
        for last, at in enumerate(times):
            while at - times[first] > window_s:
                first += 1
            most = max(most, last - first + 1)
        return most

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _drip(self, request: web.Request, every_s: float) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(every_s)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        at = time.monotonic()
        body = await request.json()
        self.seen.append(Seen(at, body, {name.lower(): value for name, value in request.headers.items()}))
        self.connections.add(request.transport)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            while self.peak < self.gather:
                await asyncio.sleep(0.005)
            fault = self.fault(body)
            if fault and fault.drip_s:
                return await self._drip(request, fault.drip_s)
            await asyncio.sleep(fault.hang_s if fault and fault.hang_s else self.delay_s)
            if fault and not fault.hang_s:
                given = {"error": {"message": f"fault {fault.status}", "type": "fault", "code": None}}
                text = fault.body if isinstance(fault.body, str) else json.dumps(fault.body or given)
                return web.Response(status=fault.status, text=text, headers=fault.headers)
            self.answered += 1
            return web.json_response(self._completion(body), headers=self.headers)
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.in_flight -= 1

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": f"re: {body['messages'][-1]['content']}"}
        return {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}], "usage": USAGE,
        } | self.reply  # fmt: skip
