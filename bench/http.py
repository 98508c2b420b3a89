"""The HTTP API against its targets: `python -m bench.http`. Takes about two minutes."""

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

from bench.spread import brief, line, note, spread
from bench.stack import Stack, measure_all
from tasks.jobs.model import JobHead, JobRequest
from workers.embedded_redis import free_port

STREAMS = 200
#: What our configuration looks for in any application.
PARTS = """
from unittest.mock import MagicMock
app.extensions["assay"] = MagicMock()
"""
EMPTY = f"""
from flask import Flask
app = Flask("empty")
{PARTS}
@app.post("/v1/jobs")
def empty(): return dict()
"""
RAW = f"""
from flask import Flask, Response
app = Flask("raw")
{PARTS}
def pages():
    for path in FILES:
        with open(path, "rb") as file:
            while page := file.read(1 << 20):
                yield page
@app.get("/raw")
def raw(): return Response(pages(), mimetype="application/x-ndjson")
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
        env=os.environ
        | {
            "ASSAY_REDIS_URL": stand.url,
            "ASSAY_STORAGE_URL": stand.settings.storage_url,
            "ASSAY_PORT": str(port),
            "ASSAY_PROFILES_FILE": str(stand.settings.profiles_file or ""),
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
    """Anything: a socket alone is there before its worker is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return bool(connection.getresponse().status)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Client:
    """One kept connection, as a trainer or a browser has it."""

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
    """Ratios of p50 and of p95, one for each round. Requests alternate: what else runs on the machine slows both."""
    middles, tails = [], []
    for _ in range(brief(rounds)):
        pairs = [(one.seconds(**options), other.seconds(**options)) for _ in range(brief(150, 30))]
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        middles.append(median(first) / median(second))
        tails.append(quantiles(first, n=20)[-1] / quantiles(second, n=20)[-1])
    print(f"  {1000 * median(first):.2f} ms over {1000 * median(second):.2f} ms in the last round")
    return middles, tails


def show(name: str, ratios: list[float], target: str) -> None:
    line(name, spread(ratios), target)


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
        side_by_side(ours, empty, rounds=1, spec=spec)  # warm
        middles, _ = side_by_side(ours, empty, spec=spec)
    show("one cached item over HTTP, p50 over an empty view", middles, "<= 4")


def open_streams(stand: Stack) -> None:
    """Submits beside 200 clients that watch 200 jobs, over submits to a process that nobody watches."""
    with gunicorn(stand) as (watched, pid), gunicorn(stand) as (quiet, quiet_pid):
        busy, alone = Client(watched), Client(quiet)
        jobs = [alone.submit([{"x": x}])["id"] for x in range(STREAMS)]
        watchers = [Client(watched) for _ in jobs]
        for watcher, job in zip(watchers, jobs, strict=True):
            watcher.watch(job)
        side_by_side(busy, alone, rounds=1)  # warm
        middles, tails = side_by_side(busy, alone)
        memory = [psutil.Process(each).children()[0].memory_info().rss / 1e6 for each in (pid, quiet_pid)]
        connections = len(stand.core.state.client_list())
        note(f"web process with {STREAMS} streams {memory[0]:.0f} MB, with none {memory[1]:.0f} MB")
        note(f"connections to Redis: {connections}")
    show(f"submit beside {STREAMS} open streams, p50 over alone", middles, "<= 2")
    show(f"submit beside {STREAMS} open streams, p95 over alone", tails, "<= 2")


def scored_items(stand: Stack) -> None:
    """10,000 items by a rule, from request to results: over HTTP, and by the job core called directly."""
    items: list[dict[str, Any]] = [
        {"id": str(x), "response": f"so it is {x}", "reference": str(x)} for x in range(10_000)
    ]
    spec = {"scorers": [{"name": "exact_match"}]}

    def direct() -> float:
        started = time.perf_counter()
        job = stand.finish(stand.core.door.submit(JobRequest(kind="score", items=items, spec=spec)))
        assert sum(1 for _ in stand.core.results.read(job)) == len(items)
        return time.perf_counter() - started

    def over_http() -> float:
        started = time.perf_counter()
        answer = client.submit(items, "?wait=120", kind="score", spec=spec)
        assert len(answer["results"]) == len(items)
        return time.perf_counter() - started

    with stand.workers(1, cpu=2), gunicorn(stand) as (port, _):
        client = Client(port)
        direct(), over_http()  # warm
        pairs = [(direct(), over_http()) for _ in range(brief(7))]
    middles = [median(each[side] for each in pairs) for side in (0, 1)]
    note(f"10,000 scored items: {middles[0]:.2f} s by the core, {middles[1]:.2f} s over HTTP")
    show("10,000 scored items over HTTP, share of the core's own rate", [each[0] / each[1] for each in pairs], ">= 0.7")


def streamed_results(stand: Stack) -> None:
    """Rows of 100,000 items as lines, against a view that sends the same bytes from files."""
    number = 100_000
    with stand.workers(2, cpu=1):
        lines = (b'{"id": "item-%d", "x": %d}' % (x, x) for x in range(number))
        job = stand.finish(stand.core.door.submit_lines(JobHead(kind="simulated", cache="off"), lines))
    files = sorted(Path(stand.settings.storage_url.removeprefix("file://")).glob("jobs/*/parts/*"))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        Path(folder, "raw_view.py").write_text(f"FILES = {[str(path) for path in files]}\n{RAW}")
        raw = servers.enter_context(gunicorn(stand, "raw_view", folder))[0]
        ours = servers.enter_context(gunicorn(stand))[0]
        seconds = [(_read(raw, "/raw"), _read(ours, f"/v1/jobs/{job.id}/results")) for _ in range(brief(9))]
    size = sum(path.stat().st_size for path in files)
    assert all(length == size for pair in seconds for _, length in pair)
    ratios = [pair[0][0] / pair[1][0] for pair in seconds]
    middles = [median(pair[side][0] for pair in seconds) for side in (0, 1)]
    note(f"results of {number:,} items, {size / 1e6:.0f} MB: raw {middles[0]:.3f} s, ours {middles[1]:.3f} s")
    show("results of 100,000 items, rate over the same bytes sent raw", ratios, ">= 0.5")


def _read(port: int, path: str) -> tuple[float, int]:
    """Seconds and bytes of an answer."""
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
