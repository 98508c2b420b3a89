"""Transports that perform the steps of a flow with httpx: one blocking, one with asyncio. They make no decisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar, cast

import httpx

from assay.calls import Call
from assay.connection import Connection
from assay.steps import ConnectionLost, Emit, Exchange, Flow, Open, Pause, Read, Reply, Step
from assay.upload import Upload

T = TypeVar("T")

#: Errors after which the server cannot have received the request.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


def _lost(error: httpx.RequestError) -> ConnectionLost:
    return ConnectionLost(error, sent=not isinstance(error, _NOT_SENT))


def _reply(response: httpx.Response, content: bytes = b"") -> Reply:
    return Reply(response.status_code, dict(response.headers), content)


def _arguments(call: Call[Any], connection: Connection) -> dict[str, Any]:
    timeout = connection.timeout(call.read_timeout_s)
    return {"params": dict(call.params) or None, "headers": dict(call.headers), "timeout": timeout}


class _Stream:
    """The open response of a flow, if any. Each flow has its own, as threads may share a client."""

    response: httpx.Response | None = None
    chunks: Any = None


class Transport:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._http = httpx.Client(base_url=connection.url, headers=connection.headers)

    def close(self) -> None:
        self._http.close()

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end and return its result."""
        answer: object = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as stop:
                return cast(T, stop.value)
            answer = self._perform(step, _Stream())

    def iterate(self, flow: Flow[None]) -> Iterator[Any]:
        """Iterate over the values of a flow. Release the connection when the iterator ends or is closed."""
        answer, stream = None, _Stream()
        try:
            while True:
                try:
                    step = flow.send(answer)
                except StopIteration:
                    return
                if isinstance(step, Emit):
                    answer = yield step.value
                else:
                    answer = self._perform(step, stream)
        finally:
            flow.close()
            self._leave(stream)

    def _perform(self, step: Step, stream: _Stream) -> Any:
        try:
            if isinstance(step, Exchange):
                response = self._send(step.call, stream=False)
                return _reply(response, response.content)
            if isinstance(step, Open):
                self._leave(stream)
                stream.response = self._send(step.call, stream=True)
                stream.chunks = stream.response.iter_bytes()
                good = stream.response.status_code < 300
                return _reply(stream.response, b"" if good else stream.response.read())
            if isinstance(step, Read):
                return next(stream.chunks, None)
        except httpx.RequestError as error:
            return _lost(error)
        if isinstance(step, Pause):
            time.sleep(step.seconds)
        return None

    def _send(self, call: Call[Any], stream: bool) -> httpx.Response:
        content = call.body.open() if call.body else None
        request = self._http.build_request(
            call.method, call.path, content=content, **_arguments(call, self._connection)
        )
        return self._http.send(request, stream=stream)

    def _leave(self, stream: _Stream) -> None:
        if stream.response is not None:
            stream.response.close()


class AsyncTransport:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._http = httpx.AsyncClient(base_url=connection.url, headers=connection.headers)

    async def close(self) -> None:
        await self._http.aclose()

    async def run(self, flow: Flow[T]) -> T:
        answer: object = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as stop:
                return cast(T, stop.value)
            answer = await self._perform(step, _Stream())

    async def iterate(self, flow: Flow[None]) -> AsyncIterator[Any]:
        answer, stream = None, _Stream()
        try:
            while True:
                try:
                    step = flow.send(answer)
                except StopIteration:
                    return
                if isinstance(step, Emit):
                    answer = yield step.value
                else:
                    answer = await self._perform(step, stream)
        finally:
            flow.close()
            await self._leave(stream)

    async def _perform(self, step: Step, stream: _Stream) -> Any:
        try:
            if isinstance(step, Exchange):
                response = await self._send(step.call, stream=False)
                return _reply(response, response.content)
            if isinstance(step, Open):
                await self._leave(stream)
                stream.response = await self._send(step.call, stream=True)
                stream.chunks = stream.response.aiter_bytes()
                good = stream.response.status_code < 300
                return _reply(stream.response, b"" if good else await stream.response.aread())
            if isinstance(step, Read):
                async for data in stream.chunks:
                    return data
                return None
        except httpx.RequestError as error:
            return _lost(error)
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        return None

    async def _send(self, call: Call[Any], stream: bool) -> httpx.Response:
        content = _from_thread(call.body) if call.body else None
        request = self._http.build_request(
            call.method, call.path, content=content, **_arguments(call, self._connection)
        )
        return await self._http.send(request, stream=stream)

    async def _leave(self, stream: _Stream) -> None:
        if stream.response is not None:
            await stream.response.aclose()


async def _from_thread(body: Upload) -> AsyncIterator[bytes]:
    """Yield the blocks of a body, read and encoded in a thread so that the event loop is not blocked."""
    blocks = body.open()
    while True:
        block = await asyncio.to_thread(next, blocks, None)
        if block is None:
            return
        yield block
