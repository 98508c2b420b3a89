"""A policy server on the `websockets` package with the frames of openpi's own server, for tests of the policy pool.

It does not block its event loop while it infers, and reads ahead, so it counts a request that comes too early.
"""

import asyncio
import http
import ssl
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import numpy as np
from openpi_client import msgpack_numpy
from websockets.asyncio.server import Request, Response, Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from tests.support.programs import PATIENCE_S

Infer = Callable[[dict[str, Any]], Any]


def stand_still(_: dict[str, Any]) -> dict[str, Any]:
    return {"actions": np.zeros((10, 2), np.float32)}


class ReferencePolicy:
    def __init__(
        self,
        infer: Infer = stand_still,
        metadata: dict[str, Any] | None = None,
        port: int = 0,
        latency_s: float = 0.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._infer, self._metadata, self._port, self._latency_s = infer, metadata or {}, port, latency_s
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.headers: list[dict[str, str]] = []
        """The request headers of each connection."""
        self.requests: list[dict[str, Any]] = []
        self.early = 0
        """Number of requests, over every connection, that came before the previous request was answered."""
        self.pongs = 0
        self.ping_idle = False
        self._unanswered = 0

    @property
    def url(self) -> str:
        assert self._server
        host, port = next(iter(self._server.sockets)).getsockname()[:2]
        return f"ws://{host}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        while self._server is None and self._thread.is_alive():
            time.sleep(0.001)
        assert self._server, "it did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def hang_up(self) -> None:
        """Close the connections, as a server does when it restarts."""
        assert self._server
        connections = list(self._server.connections)
        for connection in connections:
            asyncio.run_coroutine_threadsafe(connection.close(CloseCode.GOING_AWAY), self._loop).result(PATIENCE_S)

    def _run(self) -> None:
        async def start() -> Server:
            return await serve(
                self._handle, "127.0.0.1", self._port, compression=None, max_size=None, process_request=_health,
                ping_interval=None, ssl=self._tls,
            )  # fmt: skip

        try:
            self._server = self._loop.run_until_complete(start())
            self._loop.run_forever()
            self._server.close()
            self._loop.run_until_complete(self._server.wait_closed())
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _handle(self, connection: ServerConnection) -> None:
        assert connection.request
        self.headers.append(dict(connection.request.headers.raw_items()))
        packer = msgpack_numpy.Packer()
        await connection.send(packer.pack(self._metadata))
        waiting: asyncio.Queue[bytes | str] = asyncio.Queue()
        reader = asyncio.create_task(self._read(connection, waiting))
        pinger = asyncio.create_task(self._ping(connection))
        try:
            while True:
                message = asyncio.ensure_future(waiting.get())
                await asyncio.wait([message, reader], return_when=asyncio.FIRST_COMPLETED)
                if not message.done():
                    message.cancel()
                    return
                await self._answer(connection, packer, message.result())
        except ConnectionClosed:
            return
        finally:
            reader.cancel()
            pinger.cancel()

    async def _read(self, connection: ServerConnection, waiting: "asyncio.Queue[bytes | str]") -> None:
        async for message in connection:
            self._unanswered += 1
            self.early += self._unanswered > 1
            await waiting.put(message)

    async def _ping(self, connection: ServerConnection) -> None:
        while True:
            await asyncio.sleep(0.01)
            if self.ping_idle:
                await (await connection.ping())
                self.pongs += 1

    async def _answer(self, connection: ServerConnection, packer: Any, message: bytes | str) -> None:
        try:
            started = time.monotonic()
            observation = msgpack_numpy.unpackb(message)
            self.requests.append(observation)
            await asyncio.sleep(self._latency_s)
            reply = self._infer(observation)
            if isinstance(reply, dict):
                reply["server_timing"] = {"infer_ms": 1000 * (time.monotonic() - started)}
            self._unanswered -= 1
            await connection.send(reply if isinstance(reply, bytes) else packer.pack(reply))
        except ConnectionClosed:
            raise
        except Exception:  # noqa: BLE001  # like the reference, send the client every error
            self._unanswered -= 1
            await connection.send(traceback.format_exc())
            await connection.close(CloseCode.INTERNAL_ERROR, "Internal server error.")


def _health(connection: ServerConnection, request: Request) -> Response | None:
    return connection.respond(http.HTTPStatus.OK, "OK\n") if request.path == "/healthz" else None
