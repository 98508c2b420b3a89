"""A trace collector on a free port, which parses the OTLP requests that it receives."""

import gzip
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from tests.support.programs import PATIENCE_S


@dataclass(frozen=True)
class Received:
    service: str
    name: str
    kind: str
    trace: str
    id: str
    parent: str
    links: tuple[tuple[str, str], ...]
    """Trace and span id of each linked span."""
    failed: bool
    attributes: dict[str, Any]
    pid: int


class Collector(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.spans: list[Received] = []
        self.bodies: list[bytes] = []
        self.refuses = False
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.shutdown()
        self._thread.join(PATIENCE_S)
        self.server_close()

    def of(self, trace: str) -> list[Received]:
        return [span for span in self.spans if span.trace == trace]


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
        if not self.server.refuses:
            self.server.bodies.append(body)
            self.server.spans += _read(body)
        self.send_response(400 if self.server.refuses else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _read(body: bytes) -> list[Received]:
    found = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        about = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                found.append(
                    Received(
                        about["service.name"],
                        span.name,
                        WireSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
                        span.status.code == Status.STATUS_CODE_ERROR,
                        _attributes(span.attributes),
                        about["process.pid"],
                    )
                )
    return found


def _attributes(pairs: "list[KeyValue] | Any") -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
