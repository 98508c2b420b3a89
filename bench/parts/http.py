"""Benchmark of the HTTP API: latency of a cached item, event streams, scored items and streamed results.

`python -m bench http`; takes about two minutes.
"""

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
from statistics import median
from typing import Any

import psutil

from bench.processes.stack import Stack, measure_all
from bench.report.figures import brief, line, note
from tasks.jobs.model import JobHead
from tasks.measurement.percentiles import percentiles
from tasks.measurement.spread import spread_of
from workers.processes.ports import free_port

STREAMS = 200
#: The attributes that `web/gunicorn_config.py` expects of an application, for applications other than ours.
EXTENSIONS = """
from unittest.mock import MagicMock
from opentelemetry.trace import NoOpTracer
app.extensions["assay"] = MagicMock()
app.extensions["assay"].core.tracer = NoOpTracer()
"""
EMPTY = f"""
from flask import Flask
app = Flask("empty")
{EXTENSIONS}
@app.post("/v1/jobs")
def empty(): return dict()
"""
RAW = f"""
from flask import Flask, Response
app = Flask("raw")
{EXTENSIONS}
def pages():
    for path in FILES:
        with open(path, "rb") as file:
            while page := file.read(1 << 20):
                yield page
@app.get("/raw")
def raw(): return Response(pages(), mimetype="application/x-ndjson")
"""


@contextmanager
def gunicorn(stack: Stack, module: str = "web.wsgi", folder: str = ".") -> Iterator[tuple[int, int]]:
    """Run a gunicorn server with our configuration and the application of `module`. Yields its port and process id."""
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
        env=os.environ
        | {
            "ASSAY_REDIS_URL": stack.url,
            "ASSAY_STORAGE_URL": stack.settings.storage_url,
            "ASSAY_PORT": str(port),
            "ASSAY_PROFILES_FILE": str(stack.settings.profiles_file or ""),
            "ASSAY_LOG_LEVEL": "WARNING",
        },
    )
    try:
        while not _answers(port):
            assert process.poll() is None, f"{module} does not start"
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    """Return whether any HTTP response comes: the socket accepts connections before its worker has started."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return bool(connection.getresponse().status)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Client:
    """HTTP client with a keep-alive connection, as trainers and browsers use it."""

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

    def seconds(self, **options: Any) -> float:
        started = time.perf_counter()
        self.submit([{"x": 1}], **options)
        return time.perf_counter() - started

    def seconds_to_read(self, path: str) -> float:
        started = time.perf_counter()
        self._connection.request("GET", path)
        reply = self._connection.getresponse()
        body = reply.read()
        assert reply.status == 200, body
        return time.perf_counter() - started

    def watch(self, job: str) -> None:
        self._connection.request("GET", f"/v1/jobs/{job}/events")
        assert self._connection.getresponse().readline().startswith(b"retry")


def side_by_side(one: Client, other: Client, rounds: int = 7, **options: Any) -> tuple[list[float], list[float]]:
    """Return the ratios of the p50 and of the p95 latencies of two clients, a ratio for each round.

    Requests alternate between the clients, so that other load on the machine slows both equally."""
    middles, tails = [], []
    for _ in range(brief(rounds)):
        pairs = [(one.seconds(**options), other.seconds(**options)) for _ in range(brief(150, 30))]
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        (first_p50, first_p95), (second_p50, second_p95) = (percentiles(each, 0.5, 0.95) for each in (first, second))
        middles.append(first_p50 / second_p50)
        tails.append(first_p95 / second_p95)
    print(f"  {1000 * first_p50:.2f} ms over {1000 * second_p50:.2f} ms in the last round")
    return middles, tails


def show(name: str, ratios: list[float], target: str) -> None:
    line(name, spread_of(ratios), target)


def one_cached_item(stack: Stack) -> None:
    """Compare a submit that is answered from the cache with an empty view on the same server."""
    spec = {"cacheable": True}
    with stack.workers(1):
        stack.run([{"x": 1}], spec=spec)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        Path(folder, "empty_view.py").write_text(EMPTY)
        empty = Client(servers.enter_context(gunicorn(stack, "empty_view", folder))[0])
        ours = Client(servers.enter_context(gunicorn(stack))[0])
        assert ours.submit([{"x": 1}], spec=spec)["state"] == "done"
        side_by_side(ours, empty, rounds=1, spec=spec)  # warm up
        middles, _ = side_by_side(ours, empty, spec=spec)
    show("a cached item over HTTP, p50 over an empty view", middles, "<= 4")


def open_streams(stack: Stack) -> None:
    """Compare submits to a process that serves 200 event streams with submits to a process that serves none."""
    with gunicorn(stack) as (watched, pid), gunicorn(stack) as (quiet, quiet_pid):
        busy, alone = Client(watched), Client(quiet)
        jobs = [alone.submit([{"x": x}])["id"] for x in range(STREAMS)]
        watchers = [Client(watched) for _ in jobs]
        for watcher, job in zip(watchers, jobs, strict=True):
            watcher.watch(job)
        side_by_side(busy, alone, rounds=1)  # warm up
        middles, tails = side_by_side(busy, alone)
        memory = [psutil.Process(each).children()[0].memory_info().rss / 1e6 for each in (pid, quiet_pid)]
        connections = len(stack.core.state.client_list())
        note(f"web process with {STREAMS} streams {memory[0]:.0f} MB, with none {memory[1]:.0f} MB")
        note(f"connections to Redis: {connections}")
    show(f"submit beside {STREAMS} open streams, p50 over alone", middles, "<= 2")
    show(f"submit beside {STREAMS} open streams, p95 over alone", tails, "<= 2")


def scored_items(stack: Stack) -> None:
    """Compare scoring 10,000 items over HTTP, from request to results, with direct calls of the job core."""
    items: list[dict[str, Any]] = [
        {"id": str(x), "response": f"so it is {x}", "reference": str(x)} for x in range(10_000)
    ]
    spec = {"scorers": [{"name": "exact_match"}]}

    def direct() -> float:
        return stack.time("score", items, spec=spec).seconds_with_rows

    def over_http() -> float:
        started = time.perf_counter()
        answer = client.submit(items, "?wait=120", kind="score", spec=spec)
        assert len(answer["results"]) == len(items)
        return time.perf_counter() - started

    with stack.workers(1, cpu=2), gunicorn(stack) as (port, _):
        client = Client(port)
        direct(), over_http()  # warm up
        pairs = [(direct(), over_http()) for _ in range(brief(7))]
    middles = [median(each[side] for each in pairs) for side in (0, 1)]
    note(f"10,000 scored items: {middles[0]:.2f} s by direct calls of the core, {middles[1]:.2f} s over HTTP")
    show("10,000 scored items over HTTP, share of the core's own rate", [each[0] / each[1] for each in pairs], ">= 0.7")


def streamed_results(stack: Stack) -> None:
    """Compare streaming the results of 100,000 items as JSON lines with a view that sends the same bytes from files."""
    number = 100_000
    with stack.workers(2, cpu=1):
        lines = (b'{"id": "item-%d", "x": %d}' % (x, x) for x in range(number))
        job = stack.finish(stack.core.submitter.submit_lines(JobHead(kind="simulated", cache="off"), lines))
    files = sorted(Path(stack.settings.storage_url.removeprefix("file://")).glob("jobs/*/parts/*"))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        Path(folder, "raw_view.py").write_text(f"FILES = {[str(path) for path in files]}\n{RAW}")
        raw = servers.enter_context(gunicorn(stack, "raw_view", folder))[0]
        ours = servers.enter_context(gunicorn(stack))[0]
        seconds = [(_read(raw, "/raw"), _read(ours, f"/v1/jobs/{job.id}/results")) for _ in range(brief(9))]
    size = sum(path.stat().st_size for path in files)
    assert all(length == size for pair in seconds for _, length in pair)
    ratios = [pair[0][0] / pair[1][0] for pair in seconds]
    middles = [median(pair[side][0] for pair in seconds) for side in (0, 1)]
    note(f"results of {number:,} items, {size / 1e6:.0f} MB: raw {middles[0]:.3f} s, ours {middles[1]:.3f} s")
    show("results of 100,000 items, rate over the same bytes sent raw", ratios, ">= 0.5")


def _read(port: int, path: str) -> tuple[float, int]:
    """GET the path. Returns the seconds until the last byte, and the number of bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    started = time.perf_counter()
    connection.request("GET", path, headers={"Accept": "application/x-ndjson"})
    reply = connection.getresponse()
    length = 0
    while piece := reply.read(1 << 20):
        length += len(piece)
    connection.close()
    return time.perf_counter() - started, length


MEASURES = (one_cached_item, open_streams, scored_items, streamed_results)


def main() -> int:
    return measure_all(*MEASURES)


if __name__ == "__main__":
    sys.exit(main())
