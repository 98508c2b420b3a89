"""The API as gunicorn serves it, over plain sockets, for requests that a client library would never send."""

import contextlib
import http.client
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program, wait_until


class Served:
    """A web process on a reserved port. The constructor returns when it answers."""

    def __init__(self, run: Callable[..., Program], redis_url: str, **environment: str) -> None:
        self.port = free_port()
        self.program = run(
            "gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app",
            **{"ASSAY_REDIS_URL": redis_url, "ASSAY_PORT": str(self.port), "ASSAY_NODE": "node1"} | environment,
        )  # fmt: skip
        wait_until(self._answers, "the API answers")

    def _answers(self) -> bool:
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            assert self.program.process.poll() is None, self.program.output[-2000:]
            return False

    def connection(self, timeout_s: float = PATIENCE_S) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        connection = self.connection()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(body, dict):
            body, named = json.dumps(body), {"Content-Type": "application/json"} | named
        connection.request(method, path, body, named, encode_chunked=hasattr(body, "__next__"))
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        return reply.status, json.loads(text) if "json" in (reply.getheader("Content-Type") or "") else text.decode()

    def submit(self, *items: dict[str, Any], **options: Any) -> str:
        status, job = self.ask("POST", "/v1/jobs", {"kind": "simulated", "items": list(items)} | options)
        assert status in (200, 202), job
        return str(job["id"])

    def watch(self, job: str, last: str = "") -> "Stream":
        return Stream(self, job, last)


class Stream:
    """A client that reads a job's event stream."""

    def __init__(self, served: Served, job: str, last: str = "") -> None:
        self._connection = served.connection()
        self._connection.request("GET", f"/v1/jobs/{job}/events", headers={"Last-Event-ID": last} if last else {})
        self._socket = self._connection.sock
        self._reply = self._connection.getresponse()
        if self._reply.status != 200:
            self.close()
            raise AssertionError(f"no stream: {self._reply.status}")

    def events(self) -> Iterator[tuple[str, str]]:
        """Yield (id, event) until the stream ends."""
        fields: dict[str, str] = {}
        for line in self._reply:
            name, _, value = line.decode().strip().partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                yield fields.get("id", ""), fields["event"]
                fields = {}
        self.close()

    def close(self) -> None:
        """Disconnect like a client that was killed: without closing the stream in order."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reply.close()
        self._connection.close()
        self._socket.close()
