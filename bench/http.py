"""The HTTP API against its targets: `python -m bench.http`. Takes about a minute."""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from bench.spread import line, repeat
from bench.stack import Stack, stack
from workers.embedded_redis import free_port

STREAMS = 200
EMPTY = """
from types import SimpleNamespace
from flask import Flask
app = Flask("empty")
app.extensions["assay"] = SimpleNamespace(seats=SimpleNamespace())  # which our configuration looks for
@app.post("/v1/jobs")
def empty(): return {}
"""


@contextmanager
def gunicorn(stand: Stack, module: str = "web.wsgi", folder: str = ".") -> Iterator[tuple[int, int]]:
    """The port and the process of a web process with our configuration, serving our application or another."""
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gunicorn",
            "--config",
            "web/gunicorn_config.py",
            "--pythonpath",
            folder,
            f"{module}:app",
        ],
        env=os.environ | {"ASSAY_REDIS_URL": stand.url, "ASSAY_PORT": str(port), "ASSAY_LOG_LEVEL": "WARNING"},
    )
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


class Client:
    """One kept connection, as a trainer has it."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._connection.connect()
        self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def submit(self, items: list[dict[str, Any]], query: str = "", **options: Any) -> dict[str, Any]:
        body = json.dumps({"kind": "simulated", "items": items} | options)
        self._connection.request("POST", f"/v1/jobs{query}", body, {"Content-Type": "application/json"})
        reply = self._connection.getresponse()
        text = reply.read()
        assert reply.status in (200, 202), text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def seconds(self, times: int, **options: Any) -> list[float]:
        taken = []
        for _ in range(times):
            started = time.perf_counter()
            self.submit([{"x": 1}], **options)
            taken.append(time.perf_counter() - started)
        return taken

    def watch(self, job: str) -> None:
        self._connection.request("GET", f"/v1/jobs/{job}/events")
        assert self._connection.getresponse().readline().startswith(b"retry")


def one_cached_item(stand: Stack) -> None:
    """A trainer that asks for what is known: our whole path over a view that does nothing, same server."""
    spec = {"cacheable": True}
    with stand.workers(1):
        stand.run([{"x": 1}], spec=spec)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        Path(folder, "empty_view.py").write_text(EMPTY)
        empty = Client(servers.enter_context(gunicorn(stand, "empty_view", folder))[0])
        ours = Client(servers.enter_context(gunicorn(stand))[0])
        assert ours.submit([{"x": 1}], spec=spec)["state"] == "done"
        empty.seconds(100)
        pairs = [(median(ours.seconds(200, spec=spec)), median(empty.seconds(200))) for _ in range(5)]
    ratios = sorted(one / other for one, other in pairs)
    print(
        f"  ours {1000 * pairs[0][0]:.2f} ms, empty {1000 * pairs[0][1]:.2f} ms; "
        f"ratios {ratios[0]:.2f} to {ratios[-1]:.2f}"
    )
    line("one cached item over HTTP, p50 over an empty view", median(ratios), "<= 4")


def open_streams(stand: Stack) -> None:
    """Submits beside 200 clients that watch 200 jobs."""
    with gunicorn(stand) as (port, pid):
        client = Client(port)
        jobs = [client.submit([{"x": x}])["id"] for x in range(STREAMS)]
        client.seconds(100)
        (process,) = psutil.Process(pid).children()
        alone, memory = repeat(lambda: median(client.seconds(200))), process.memory_info().rss
        tail = quantiles(client.seconds(400), n=20)[-1]
        watchers = [Client(port) for _ in jobs]
        for watcher, job in zip(watchers, jobs, strict=True):
            watcher.watch(job)
        beside, watching = repeat(lambda: median(client.seconds(200))), process.memory_info().rss
        tail_beside = quantiles(client.seconds(400), n=20)[-1]
        connections = len(stand.core.state.client_list())
    print(
        f"  submit alone {alone} s, beside {STREAMS} streams {beside} s; "
        f"p95 {1000 * tail:.1f} and {1000 * tail_beside:.1f} ms; "
        f"memory {memory / 1e6:.0f} and {watching / 1e6:.0f} MB; {connections} connections to Redis"
    )
    line(f"submit beside {STREAMS} open streams, p50 over alone", beside.middle / alone.middle, "<= 2")
    line(f"submit beside {STREAMS} open streams, p95 over alone", tail_beside / tail, "<= 2")


MEASURES = (one_cached_item, open_streams)


def main() -> None:
    for measure in MEASURES:
        with stack() as stand:
            measure(stand)


if __name__ == "__main__":
    main()
