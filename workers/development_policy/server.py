"""WebSocket server of the development policy, framed and serialised as openpi's. Inference blocks the event loop, so
that nothing else runs meanwhile.

A WebSocket on any path; `GET /healthz`; and, for tests, `GET|PUT /knobs`, `GET|DELETE /counts`.
"""

import asyncio
import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from aiohttp import WSCloseCode, WSMsgType, web

from workers.development_policy import NOTICE
from workers.development_policy.controllers import plan
from workers.development_policy.knobs import Fate, Knobs, draw_fate
from workers.development_servers.knobs import WrongKnob, changed
from workers.policies.codec import decode, encode

_GARBAGE = b"\xc1 this is no message"
_CLOSING = b"Internal server error. Traceback included in previous frame."


class DevelopmentPolicy:
    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._chance = random.Random(knobs.seed)
        self._released = asyncio.Event()
        self._counts: Counter[str] = Counter()
        self._by_fate: Counter[str] = Counter()
        self._busy_s = 0.0
        self._set(knobs)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, request.path:
            case "GET", "/healthz":
                return web.Response(text="OK\n")
            case "GET", "/knobs":
                return _json(asdict(self._knobs) | ({"key": "(set)"} if self._knobs.key else {}))
            case "PUT", "/knobs":
                try:
                    changes = json.loads(await request.read())
                    self._set(changed(self._knobs, changes), "seed" in changes)
                except (WrongKnob, ValueError) as error:
                    return web.Response(status=400, text=str(error))
                return _json(asdict(self._knobs))
            case "GET", "/counts":
                return _json({**self._counts, "busy_s": self._busy_s, "by_fate": dict(self._by_fate)})
            case "DELETE", "/counts":
                open_now = self._counts["connections"]
                self._counts, self._by_fate, self._busy_s = Counter(connections=open_now), Counter(), 0.0
                return _json({})
        if self._knobs.key and request.headers.get("Authorization") != f"Api-Key {self._knobs.key}":
            return web.Response(status=401, text="Unauthorized\n")
        return await self._serve(request)

    def _set(self, knobs: Knobs, anew: bool = False) -> None:
        self._knobs = knobs
        if anew:
            self._chance = random.Random(knobs.seed)
        if knobs.hold:
            self._released.clear()
        else:
            self._released.set()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(compress=False, max_msg_size=0)
        await socket.prepare(request)
        self._enter("connections")
        try:
            if self._knobs.greeting != "none":
                await socket.send_bytes(encode(self._metadata()) if self._knobs.greeting == "yes" else _GARBAGE)
            previous_s: float | None = None
            async for message in socket:
                began = time.monotonic()
                self._counts["calls"] += 1
                self._enter("in_flight")
                try:
                    await self._answer(request, socket, message.data, message.type, previous_s)
                except Exception:  # noqa: BLE001  # as the reference server: the client gets any error
                    await socket.send_str(traceback.format_exc())
                    await socket.close(code=WSCloseCode.INTERNAL_ERROR, message=_CLOSING)
                finally:
                    self._counts["in_flight"] -= 1
                previous_s = time.monotonic() - began
        except ConnectionError:  # the client has disconnected
            self._counts["left"] += 1
        finally:
            self._counts["connections"] -= 1
        return socket

    async def _answer(
        self,
        request: web.BaseRequest,
        socket: web.WebSocketResponse,
        data: Any,
        kind: WSMsgType,
        previous_s: float | None,
    ) -> None:
        await self._released.wait()
        fate = draw_fate(self._knobs, self._chance)
        self._by_fate[fate] += 1
        observation = decode(data if kind == WSMsgType.BINARY else data.encode())
        began = time.monotonic()
        reply = self._infer(observation, fate)
        took_s = time.monotonic() - began
        self._busy_s += took_s
        if fate == "hang":
            await asyncio.Event().wait()
        elif fate == "drop":
            if request.transport:
                request.transport.abort()
        elif fate == "garbage":
            await socket.send_bytes(_GARBAGE)
        else:
            reply["server_timing"] = {"infer_ms": 1000 * took_s}
            if previous_s is not None:
                reply["server_timing"]["prev_total_ms"] = 1000 * previous_s
            await socket.send_bytes(encode(reply))

    def _infer(self, observation: Any, fate: Fate) -> dict[str, Any]:
        if self._knobs.latency_ms:
            time.sleep(self._knobs.latency_ms / 1000)
        if fate == "wedge":
            while True:
                time.sleep(3600)
        if fate == "error":
            raise {"ValueError": ValueError, "RuntimeError": RuntimeError}[self._knobs.error]("told to fail")
        actions = plan(observation, self._knobs.horizon)
        return {"actions": np.zeros((3, 2, 1), np.float32) if fate == "shape" else actions}

    def _metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = {"policy": "assay-development", "notice": NOTICE, "horizon": self._knobs.horizon}
        return metadata | ({"version": self._knobs.version} if self._knobs.version else {})

    def _enter(self, name: str) -> None:
        self._counts[name] += 1
        self._counts[f"peak_{name}"] = max(self._counts[f"peak_{name}"], self._counts[name])


def _json(document: dict[str, Any]) -> web.Response:
    return web.Response(body=json.dumps(document).encode(), content_type="application/json")


async def serve(host: str, port: int, knobs: Knobs, on_ready: Callable[[int], None], stopped: asyncio.Event) -> None:
    """Serve until `stopped` is set, then cancel the requests in flight."""
    server = web.Server(DevelopmentPolicy(knobs).handle, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.2)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        addresses: list[Any] = list(runner.addresses)
        on_ready(addresses[0][1])
        await stopped.wait()
    finally:
        await runner.cleanup()
