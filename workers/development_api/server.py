"""Server of the development API: one asyncio process on loopback, so that counting and limiting need no lock.

`POST .../chat/completions`, `GET .../models`, `GET /health`, `GET|PUT /knobs`, `GET|DELETE /counts`.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from workers.development_api import NOTICE, responses
from workers.development_api.chat_request import Asked, Invalid, read_body, read_json
from workers.development_api.counts import Call, Counts
from workers.development_api.knobs import Fate, Knobs, draw_fate, draw_latency_s, for_one_call
from workers.development_api.rate_limits import Limits, Refused, retry_headers
from workers.development_servers.knobs import WrongKnob, changed

MODELS = ("development", "development-large")
MAX_BODY_BYTES = 16 * 2**20
#: Maximum seconds of a hanging call before it is cut off.
MAX_HANG_S = 3600.0
_HTML = b"<html><body><h1>It works!</h1></body></html>"


BAD_KEY = "invalid_api_key"


@dataclass(frozen=True, slots=True)
class Plan:
    """Planned outcome of a call, drawn at its arrival."""

    number: int
    asked: Asked
    model: str
    knobs: Knobs
    fate: Fate
    latency_s: float
    choices: list[responses.Choice]


class DevelopmentApi:
    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._chance = random.Random(knobs.seed)
        self._counts = Counts()
        self._limits = Limits()
        self._number = 0
        self._released = asyncio.Event()
        self._released.set()
        self._set(knobs)

    def server(self) -> web.Server:
        """Return the server for `web.ServerRunner`. A call is cancelled if its client disconnects: hanging calls would
        pile up."""
        return web.Server(self._handle, request_factory=_request, handler_cancellation=True, access_log=None)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path.endswith("/chat/completions"):
            return await self._chat(request) if request.method == "POST" else _wrong_method()
        views: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.Response]]] = {
            ("GET", "/knobs"): self._show_knobs,
            ("PUT", "/knobs"): self._set_knobs,
            ("GET", "/counts"): self._show_counts,
            ("DELETE", "/counts"): self._reset_counts,
        }
        if view := views.get((request.method, path)):
            return await view(request)
        if request.method == "GET" and path in ("", "/health"):
            return web.Response(text=f"ok. {NOTICE}\n")
        if request.method == "GET" and path.endswith("/models"):
            return _json(responses.models(MODELS))
        return _error(404, f"Unknown request URL: {request.method} {request.path}.", code="unknown_url")

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        call = self._counts.arrive()
        try:
            response = await self._answer(request, call)
            call.settle(str(response.status))
            return response
        except asyncio.CancelledError:
            call.settle("left")
            raise
        except web.HTTPException as refusal:  # a body that is too long
            call.settle(str(refusal.status))
            raise
        finally:
            call.settle("500")

    async def _answer(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        body = await request.read()
        try:
            plan = self._plan(request, body, call)
        except WrongKnob as error:
            return _error(400, str(error), code="wrong_knob")
        except Invalid as error:
            return _error(401 if error.code == BAD_KEY else 400, str(error), error.param, error.code)
        call.meet(plan.fate)
        now_s = time.monotonic()
        refused = (
            Refused("Rate limit reached: try again later.", 0.0)
            if plan.fate == "429"
            else self._limits.enter(plan.knobs, now_s, responses.usage(plan.asked, plan.choices)["total_tokens"])
        )
        if refused:
            headers = retry_headers(refused.wait_s or plan.knobs.retry_after_s)
            headers |= self._limits.headers(self._knobs, now_s)
            return _error(429, refused.message, kind="requests", code="rate_limit_exceeded", headers=headers)
        call.accept(now_s)
        try:
            await self._released.wait()
            if plan.latency_s:
                await asyncio.sleep(plan.latency_s)
            return await self._perform(request, call, plan)
        finally:
            self._limits.leave()

    def _plan(self, request: web.BaseRequest, body: bytes, call: Call) -> Plan:
        document = read_json(body)
        model = document.get("model")
        if not isinstance(model, str) or not model:
            raise Invalid("you must provide a model parameter", "model")
        knobs, model = for_one_call(self._knobs, request.headers.items(), model)
        call.name(model, body)
        if knobs.key and request.headers.get("Authorization") != f"Bearer {knobs.key}":
            raise Invalid("Incorrect API key provided.", code=BAD_KEY)
        asked = read_body(document, body, knobs)
        self._number += 1
        fate = draw_fate(knobs, self._chance)
        latency_s = draw_latency_s(knobs, self._chance)
        choices = responses.make_choices(asked, knobs, fate, self._number)
        return Plan(self._number, asked, model, knobs, fate, latency_s, choices)

    async def _perform(self, request: web.BaseRequest, call: Call, plan: Plan) -> web.StreamResponse:
        """Perform the drawn fault, or send the reply."""
        if plan.fate == "500":
            status = self._chance.choice((500, 502, 503))
            return _error(status, "The server had an error while processing your request.", kind="server_error")
        if plan.fate == "hang":
            try:
                await asyncio.sleep(MAX_HANG_S)
            finally:
                call.settle("hung")
            return _cut(request)
        used = responses.usage(plan.asked, plan.choices)
        call.use(used["prompt_tokens"], used["completion_tokens"])
        now_s, name, created = time.monotonic(), f"chatcmpl-dev{plan.number:010x}", int(time.time())
        headers = self._limits.headers(self._knobs, now_s)
        headers["x-request-id"] = f"req_dev{plan.number:010x}"
        headers["openai-processing-ms"] = str(int(1000 * (now_s - call.arrived_s)))
        if plan.asked.stream:
            events = list(responses.stream(plan.asked, plan.model, plan.choices, name, created))
            return await self._stream(request, call, events, headers, plan.fate)
        body = responses.completion(plan.asked, plan.model, plan.choices, name, created)
        if plan.fate == "drop":
            return await self._drop(request, call, body)
        if plan.fate == "garbage":
            return self._garbage(body)
        return _json(body, headers=headers)

    async def _stream(
        self, request: web.BaseRequest, call: Call, events: list[bytes], headers: dict[str, str], fate: Fate
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**headers, **_NOTICE, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number, event in enumerate(events):
            if fate == "drop" and number == len(events) // 2:
                call.settle("dropped")
                return _cut(request)
            await response.write(_HTML if fate == "garbage" else event)
        await response.write_eof()
        return response

    async def _drop(self, request: web.BaseRequest, call: Call, body: bytes) -> web.StreamResponse:
        call.settle("dropped")
        if self._chance.random() < 0.5:
            response = web.StreamResponse(headers={"Content-Type": "application/json"})
            response.content_length = len(body)
            await response.prepare(request)
            await response.write(body[: len(body) // 2])
        return _cut(request)

    def _garbage(self, body: bytes) -> web.Response:
        kind = self._chance.randrange(3)
        if kind == 0:
            return web.Response(body=_HTML, content_type="text/html", headers=_NOTICE)
        return _json(body[: len(body) // 2] if kind == 1 else b'{"ok":true}')

    async def _show_knobs(self, _: web.BaseRequest) -> web.Response:
        shown = replace(self._knobs, key="(set)") if self._knobs.key else self._knobs
        return _json(json.dumps(asdict(shown)).encode())

    async def _set_knobs(self, request: web.BaseRequest) -> web.Response:
        try:
            changes = read_json(await request.read())
            self._set(changed(self._knobs, changes), anew="seed" in changes)
        except (Invalid, WrongKnob) as error:
            return _error(400, str(error), code="wrong_knob")
        return await self._show_knobs(request)

    def _set(self, knobs: Knobs, anew: bool = False) -> None:
        self._knobs = knobs
        if anew:
            self._chance = random.Random(knobs.seed)
        if knobs.hold:
            self._released.clear()
        else:
            self._released.set()

    async def _show_counts(self, request: web.BaseRequest) -> web.Response:
        try:
            windows_s = [float(value) for value in request.query.getall("window_s", [])]
            times = int(request.query.get("times", "0"))
        except ValueError:
            return _error(400, "window_s and times must be numbers.")
        return _json(json.dumps(self._counts.as_json(windows_s, times)).encode())

    async def _reset_counts(self, _: web.BaseRequest) -> web.Response:
        self._counts = Counts()
        return await self._show_counts(_)


_NOTICE = {"x-assay-development": NOTICE}


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES)


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=body, status=status, content_type="application/json", headers={**_NOTICE, **(headers or {})}
    )


def _error(
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    kind: str = "invalid_request_error",
    headers: dict[str, str] | None = None,
) -> web.Response:
    return _json(responses.error(message, kind, param, code), status, headers)


def _wrong_method() -> web.Response:
    return _error(405, "Not allowed: this URL is for POST.", code="method_not_supported")


def _cut(request: web.BaseRequest) -> web.StreamResponse:
    """Abort the connection of the client. The returned response reaches no client."""
    if request.transport:
        request.transport.abort()
    return web.Response(status=499)


async def serve(host: str, port: int, knobs: Knobs, on_ready: Callable[[int], None], stopped: asyncio.Event) -> None:
    """Serve until `stopped` is set, then cancel the calls in flight."""
    runner = web.ServerRunner(DevelopmentApi(knobs).server(), shutdown_timeout=0.2)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
        addresses: list[Any] = list(runner.addresses)
        on_ready(addresses[0][1])
        await stopped.wait()
    finally:
        await runner.cleanup()
