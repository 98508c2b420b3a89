"""A server with Assay's HTTP contract, for tests of the client. A test may inject faults.

Faults happen at the wire: a request that is carried out and never answered, a stream that breaks in the middle of a
row, a 503. An item scores its `x`, and fails if it has `fail`, unless the test replaces `outcome`. A job ends at once
unless the server is `held`.
"""

import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

JOB = re.compile(r"/v1/jobs/([^/]+)(?:/(\w+))?")


@dataclass
class Fault:
    """A fault that the server injects into the next matching requests."""

    route: str
    """The first characters of "METHOD /path"."""
    kind: str
    """`drop`: carry the request out and never answer. `cut`: break the stream in the middle of a row. `end`: end the
    stream early, without a sign. `rewind`: start it two rows too early. A status such as `503`: answer with it."""
    times: int = 1
    rows: int = 0
    retry_after: str = ""


@dataclass
class Seen:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class Stored:
    view: dict[str, Any]
    items: list[dict[str, Any]]
    rows: list[dict[str, Any]] = field(default_factory=list)


class WireServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, token: str = "") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token = token
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.jobs: dict[str, Stored] = {}
        self.keys: dict[str, str] = {}
        names = ("queues", "devices", "workers", "scorers", "profiles", "rewards")
        self.lists: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        self.outcome: Callable[[dict[str, Any]], dict[str, Any]] = simulated_outcome
        """Computes the outcome of an item, without its index and ids."""
        self.calibration: dict[str, Any] = {}
        self.ready: dict[str, Any] = {"ready": True, "missing": []}
        self.pool: dict[str, Any] | None = None
        """Answer of `/pool_status`. None: 404, as older servers answer."""
        self.unplaced: dict[str, int] = {}
        """Number of items that a repair finds in no place, by job."""
        self.clock_s = 0.0
        self.events = True
        self.changed = threading.Condition(threading.RLock())
        self.held = False
        self.settled_at_once = 0
        """Number of items that get an outcome on submit although the server is held."""
        self.open_streams = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection: clients that disconnect are part of the tests."""

    def fault(self, route: str, kind: str, **more: Any) -> None:
        self.faults.append(Fault(route, kind, **more))

    def fault_for(self, route: str, kinds: tuple[str, ...] = ()) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and route.startswith(fault.route) and (not kinds or fault.kind in kinds):
                fault.times -= 1
                return fault
        return None

    def requests(self, route: str) -> list[Seen]:
        return [seen for seen in self.seen if f"{seen.method} {seen.path}".startswith(route)]

    def submit(self, kind: str, items: list[dict[str, Any]], key: str) -> Stored:
        with self.changed:
            if key and key in self.keys:
                return self.jobs[self.keys[key]]
            name = f"job-{len(self.jobs)}"
            view = {"id": name, "kind": kind, "state": "running", "total": len(items), "ok": 0, "failed": 0, "epoch": 0}
            view |= {"created_at": time.time(), "reasons": {}, "priority": "normal", "a_field_of_tomorrow": 1}
            stored = self.jobs[name] = Stored(view, items)
            self.keys[key or name] = name
            if self.settled_at_once or not self.held:
                self.settle(stored, self.settled_at_once if self.held else None)
            return stored

    def settle(self, stored: Stored, count: int | None = None) -> None:
        """Give outcomes to the next `count` items, or to the rest of them. The job ends with its last item."""
        with self.changed:
            start = len(stored.rows)
            for index, item in enumerate(stored.items[start : None if count is None else start + count], start):
                stored.rows.append(_row(index, item, self.outcome(item)))
            stored.view["ok"] = sum(row["valid"] for row in stored.rows)
            stored.view["failed"] = len(stored.rows) - stored.view["ok"]
            if stored.view["failed"]:
                stored.view["reasons"] = {"simulated": stored.view["failed"]}
            if len(stored.rows) == len(stored.items):
                stored.view |= {"state": "done", "ended_at": time.time()}
            self.changed.notify_all()

    def release(self) -> None:
        with self.changed:
            self.held = False
            for stored in self.jobs.values():
                if stored.view["state"] == "running":
                    self.settle(stored)


def simulated_outcome(item: dict[str, Any]) -> dict[str, Any]:
    return failed("simulated") if item.get("fail") else succeeded(float(item.get("x", 0)))


def succeeded(score: float, **parts: float) -> dict[str, Any]:
    return {"status": "ok", "score": score, "valid": True, "parts": parts, "error": None}


def failed(kind: str, **parts: float) -> dict[str, Any]:
    error = {"type": kind, "message": "It was asked to fail.", "retryable": False}
    return {"status": "failed", "score": None, "valid": False, "parts": parts, "error": error}


def _row(index: int, item: dict[str, Any], outcome: dict[str, Any]) -> dict[str, Any]:
    known = {"index": index, "id": item.get("id"), "group_id": item.get("group_id"), "value": None, "cached": False}
    return known | {"attempts": 1, "latency_ms": 1.0, "worker": "cpu.node1.0"} | outcome


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WireServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002  # the base class has it
        return super().date_time_string(int(time.time() + self.server.clock_s))

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_DELETE = do_GET

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        self.query = dict(parse_qsl(parts.query, keep_blank_values=True))
        body = self._body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append(Seen(self.command, parts.path, self.query, headers, body))
        route = f"{self.command} {parts.path}"
        refusal = next(
            (f for f in self.server.faults if f.kind.isdigit() and f.times and route.startswith(f.route)), None
        )
        if refusal:
            refusal.times -= 1
            self._problem(int(refusal.kind), "as the test asked", refusal.retry_after)
        elif self.server.token and headers.get("authorization") != f"Bearer {self.server.token}" and "/v1" in route:
            self._problem(401, "This needs a bearer token.")
        elif self.server.fault_for(route, ("drop",)):
            self._dispatch(parts.path, body, _Nowhere())
            self._hang_up()
        else:
            self._dispatch(parts.path, body, self)

    def _dispatch(self, path: str, body: bytes, to: Any) -> None:
        server, match = self.server, JOB.fullmatch(path)
        if path == "/v1/jobs" and self.command == "POST":
            self._submit(body, to)
        elif path == "/v1/jobs":
            self._list(to)
        elif match and match[1] not in server.jobs:
            to._problem(404, f"There is no job {match[1]!r}; it may have expired.")
        elif match:
            self._job(server.jobs[match[1]], match[2] or "", to)
        elif path.removeprefix("/v1/") in server.lists:
            name = path.removeprefix("/v1/")
            to._json(200, server.lists[name] if name == "scorers" else {name: server.lists[name]})
        elif path == "/ready":
            to._json(200 if server.ready["ready"] else 503, server.ready)
        elif path == "/pool_status" and server.pool is not None:
            to._json(200, server.pool)
        elif path == "/health":
            to._json(200, "ok")
        elif path == "/openapi.json":
            to._json(200, {"info": {"version": "0.1.0"}})
        else:
            to._problem(404, "No such page.")

    def _submit(self, body: bytes, to: Any) -> None:
        try:
            request, items = self._request(body)
        except ValueError as error:
            to._problem(422, str(error), field="items")
            return
        if request["kind"] not in ("simulated", "score", "judge", "inference"):
            to._problem(422, f"There is no kind {request['kind']!r}.", field="kind")
            return
        stored = self.server.submit(request["kind"], items, self.headers.get("Idempotency-Key", ""))
        done = stored.view["state"] == "done"
        to._json(
            200 if done else 202, stored.view | ({"results": stored.rows} if done and self.query.get("wait") else {})
        )

    def _request(self, body: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        kind = self.headers["Content-Type"]
        if kind == "application/json":
            request = json.loads(body)
            return request, request["items"]
        if kind.startswith("multipart/"):
            whole = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
            first, second = whole.iter_parts()  # type: ignore[attr-defined]
            return json.loads(first.get_payload(decode=True)), _lines(second.get_payload(decode=True))
        return self.query, _lines(body)

    def _list(self, to: Any) -> None:
        views = [stored.view for stored in reversed(self.server.jobs.values())]
        views = [view for view in views if self.query.get("state", view["state"]) == view["state"]]
        start, limit = int(self.query.get("cursor") or 0), int(self.query.get("limit", 50))
        more = str(start + limit) if start + limit < len(views) else None
        to._json(200, {"jobs": views[start : start + limit], "next": more})

    def _job(self, stored: Stored, rest: str, to: Any) -> None:
        with self.server.changed:
            if self.command == "DELETE" and stored.view["state"] == "running":
                stored.view["state"] = "cancelled"
                for index, item in list(enumerate(stored.items))[len(stored.rows) :]:
                    stored.rows.append(_row(index, item, failed("cancelled") | {"status": "cancelled"}))
                self.server.changed.notify_all()
            if rest == "retry":
                stored.view |= {"epoch": stored.view["epoch"] + 1, "retried": stored.view["failed"]}
        if rest == "results":
            self._results(stored)
        elif rest == "events" and self.server.events:
            self._events(stored)
        elif rest == "calibration" and self.server.calibration:
            to._json(200, {"job": stored.view["id"], "state": stored.view["state"]} | self.server.calibration)
        elif rest == "calibration":
            to._problem(409, "No item of the job has a label.")
        elif rest in ("", "retry", "pause", "resume"):
            to._json(200, stored.view)
        elif rest == "repair":
            to._json(200, stored.view | {"repaired": self.server.unplaced.pop(stored.view["id"], 0)})
        else:
            to._problem(404, "No such page.")

    def _results(self, stored: Stored) -> None:
        start, limit = int(self.query.get("start", 0)), self.query.get("limit")
        if self.server.fault_for(f"GET {urlsplit(self.path).path}", ("rewind",)):
            start = max(0, start - 2)
        rows = stored.rows[start : None if limit is None else start + int(limit)]
        fault = self.server.fault_for(f"GET {urlsplit(self.path).path}", ("cut", "end"))
        with self._stream("application/x-ndjson") as stream:
            for number, row in enumerate(rows):
                line = json.dumps(row).encode() + b"\n"
                if fault and number == fault.rows:
                    if fault.kind == "cut":
                        stream.write(line[: len(line) // 2])
                        self._hang_up()
                    return
                stream.write(line)

    def _events(self, stored: Stored) -> None:
        fault = self.server.fault_for(f"GET {urlsplit(self.path).path}", ("cut",))
        told, number = None, int(self.headers.get("Last-Event-ID", 0))
        with self._stream("text/event-stream") as stream:
            while told is None or told["state"] == "running":
                with self.server.changed:
                    if told is not None:
                        self.server.changed.wait_for(partial(_differs, told, stored.view), timeout=15)
                    told, number = dict(stored.view), number + 1
                name = "progress" if told["state"] == "running" else told["state"]
                stream.write(f"id: {number}\nevent: {name}\ndata: {json.dumps(told)}\n\n: ping\n".encode())
                if fault:
                    self._hang_up()
                    return

    def _stream(self, media_type: str) -> "_Chunked":
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        return _Chunked(self)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _json(self, status: int, data: Any, media_type: str = "application/json", retry_after: str = "") -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(content)

    def _problem(self, status: int, detail: str, retry_after: str = "", **more: str) -> None:
        problem = {"type": "about:blank", "title": "Problem", "status": status, "detail": detail} | more
        self._json(status, problem, "application/problem+json", retry_after)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class _Nowhere:
    """Discards the answer to a dropped request."""

    def _json(self, *_: Any, **__: Any) -> None: ...

    _problem = _json


class _Chunked:
    def __init__(self, handler: _Handler) -> None:
        self._handler = handler

    def __enter__(self) -> Self:
        self._handler.server.open_streams += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handler.server.open_streams -= 1
        if error is None and not self._handler.close_connection:
            self._handler.wfile.write(b"0\r\n\r\n")

    def write(self, data: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self._handler.wfile.flush()


def _differs(told: dict[str, Any], view: dict[str, Any]) -> bool:
    return told != view


def _lines(body: bytes) -> list[dict[str, Any]]:
    items = []
    for number, line in enumerate(body.splitlines(), 1):
        try:
            items.append(json.loads(line))
        except ValueError:
            raise ValueError(f"Line {number} is not JSON.") from None
    return items
