"""The API under gunicorn: streams that disconnect, chunked uploads, gzip bombs, and a stop in the middle."""

import gzip
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support.programs import Program, wait_until
from tests.support.redis_server import RedisServer

NDJSON = "application/x-ndjson"


@pytest.fixture
def served(run: Callable[..., Program], redis_url: str) -> Served:
    return Served(run, redis_url)


def lines(number: int, block: int = 1000) -> Iterator[bytes]:
    for start in range(0, number, block):
        yield b"".join(b'{"x": %d}\n' % x for x in range(start, min(start + block, number)))


def test_a_watcher_sees_every_event_and_resumes_after_a_disconnect(run: Callable[..., Program], system: System) -> None:
    served = Served(run, system.state.url, ASSAY_CACHE_URL=system.cache.url)
    job = served.submit(*({"x": x} for x in range(40)), spec={"cost_s": 0.05, "batch_items": 2})
    first = served.watch(job)
    seen = []
    for event in first.events():
        seen.append(event)
        if event[1] == "progress":
            break
    first.close()
    seen += served.watch(job, seen[-1][0]).events()
    assert [name for name, _ in seen] == sorted({name for name, _ in seen}), "no event comes twice or out of order"
    assert (seen[0][1], seen[-1][1]) == ("queued", "done")
    kept = system.core.state.xrange(f"assay:job:{job}:events")
    assert [name for name, _ in seen] == [name for name, _ in kept], "no event is missing"
    # With `wait`, the answer to the submit contains the results.
    status, answer = served.ask("POST", "/v1/jobs?wait=120", {"kind": "simulated", "items": [{"x": 1}]})
    assert (status, answer["state"], len(answer["results"])) == (200, "done", 1)


#: Startup code of a web process that sends no pings: a failed ping would show that a watcher has left.
NO_PINGS = "import sys; sys.path.insert(0, '.'); import web.jobs.events; web.jobs.events.PING_S = 3600.0"


def test_a_watcher_that_leaves_gives_its_thread_back(
    run: Callable[..., Program], redis_url: str, tmp_path: Path
) -> None:
    (startup := tmp_path / "startup").mkdir()
    (startup / "sitecustomize.py").write_text(NO_PINGS)
    served = Served(run, redis_url, ASSAY_WEB_THREADS="8", PYTHONPATH=str(startup))
    assert "sitecustomize" not in served.program.output, "the startup code failed"
    job = served.submit({"x": 1})
    streams = [served.watch(job) for _ in range(7)]
    assert served.ask("GET", f"/v1/jobs/{job}/events")[0] == 503
    for stream in streams:
        stream.close()

    def again() -> bool:
        try:
            served.watch(job).close()
        except AssertionError:
            return False
        return True

    wait_until(again, "the long request of a closed watcher is released")


def test_a_stop_does_not_wait_for_watchers(run: Callable[..., Program], redis_url: str) -> None:
    served = Served(run, redis_url, ASSAY_STOP_GRACE_S="3600")  # a stop that waits for the watcher takes this long
    stream = served.watch(served.submit({"x": 1}))
    assert served.program.stop(signal.SIGTERM) == 0
    assert [event for _, event in stream.events()] == ["queued"]


def test_clients_that_linger_delay_no_other_client(served: Served) -> None:
    """gunicorn's own worker stops accepting for two seconds for each client that does not close its side."""
    number = 50
    started = time.monotonic()
    with ExitStack() as lingering:
        for _ in range(number):
            client = lingering.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(100)
            assert served.ask("GET", "/health")[0] == 200
    assert time.monotonic() - started < number, "100 s where lingering clients block, and half a second where not"


def test_an_upload_comes_in_pieces_of_unknown_length(served: Served) -> None:
    status, job = served.ask("POST", "/v1/jobs?kind=simulated", lines(20_000), Content_Type=NDJSON)
    assert (status, job["total"]) == (202, 20_000)


@pytest.mark.parametrize("length", [True, False])
def test_an_upload_that_breaks_off_makes_no_job(served: Served, length: bool) -> None:
    head = f"Content-Type: {NDJSON}\r\n" + ("Content-Length: 1000" if length else "Transfer-Encoding: chunked")
    body = b'{"x": 1}\n' if length else b'9\r\n{"x": 1}\n\r\n'
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(f"POST /v1/jobs?kind=simulated HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
        client.sendall(body)
        client.shutdown(socket.SHUT_WR)
        answer = b""
        while b"send it again" not in answer and (data := client.recv(65536)):
            answer += data
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert b"send it again" in answer
    assert served.ask("GET", "/v1/jobs")[1]["jobs"] == []


def test_a_bomb_is_refused_in_little_memory(run: Callable[..., Program], redis_url: str) -> None:
    served = Served(run, redis_url, ASSAY_MAX_UPLOAD_MB="500", ASSAY_MAX_BODY_MB="50")
    bomb = gzip.compress(b" " * 300_000_000)  # 300 kB
    (process,) = served.program.descendants()
    before = process.memory_info().rss
    status, problem = served.ask("POST", "/v1/jobs", bomb, Content_Type="application/json", Content_Encoding="gzip")
    assert (status, problem["status"]) == (413, 413)
    # As JSON lines, it is a line without an end.
    status, problem = served.ask("POST", "/v1/jobs?kind=simulated", bomb, Content_Type=NDJSON, Content_Encoding="gzip")
    assert (status, problem["field"]) == (413, "line 1")
    assert process.memory_info().rss - before < 150_000_000


def test_a_large_body_that_is_refused_early_still_gets_its_answer(run: Callable[..., Program], redis_url: str) -> None:
    served = Served(run, redis_url, ASSAY_MAX_BODY_MB="1")
    status, problem = served.ask("POST", "/v1/jobs", b" " * 5_000_000, Content_Type="application/json")
    assert (status, problem["title"]) == (413, "Too large")


def test_without_redis_a_submit_is_refused_at_once_and_accepted_later(
    run: Callable[..., Program], tmp_path: Path
) -> None:
    with RedisServer(tmp_path) as server:
        served = Served(run, server.url)
        served.submit({"x": 1})
        server.stop()
        # A refusal that came at the end of the wait would come after the timeout of this client.
        status, problem = served.ask("POST", "/v1/jobs?wait=300", {"kind": "simulated", "items": [{"x": 1}]})
        assert status == 503
        assert "does not answer" in problem["detail"]
        server.start()
        served.submit({"x": 2})
        assert len(served.ask("GET", "/v1/jobs")[1]["jobs"]) == 2


def test_beyond_loopback_the_server_starts_with_tokens_only(
    run: Callable[..., Program], redis_url: str, tmp_path: Path
) -> None:
    argv = ("gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app")
    alone = run(*argv, ASSAY_REDIS_URL=redis_url, ASSAY_HOST="0.0.0.0")
    assert alone.wait() != 0
    assert "ASSAY_HOST: without tokens the API serves only loopback" in alone.output
    tokens = tmp_path / "tokens.jsonl"
    missing = run(*argv, ASSAY_REDIS_URL=redis_url, ASSAY_HOST="0.0.0.0", ASSAY_TOKENS_FILE=str(tokens))
    assert missing.wait() != 0
    assert "cannot be read" in missing.output
    made = run("python", "-m", "web.tokens", "add", "me", ASSAY_TOKENS_FILE=str(tokens))
    assert made.wait() == 0
    secret = made.output.split()[0]
    served = Served(run, redis_url, ASSAY_HOST="0.0.0.0", ASSAY_TOKENS_FILE=str(tokens))
    assert served.ask("GET", "/v1/jobs")[0] == 401
    assert served.ask("GET", "/v1/jobs", Authorization=f"Bearer {secret}")[0] == 200
    assert secret not in served.program.output


def test_streams_and_submits_do_not_starve_each_other(run: Callable[..., Program], redis_url: str) -> None:
    served = Served(run, redis_url, ASSAY_WEB_THREADS="16")
    job = served.submit({"x": 1})
    streams = [served.watch(job) for _ in range(14)]
    connection = served.connection()
    connection.request("GET", f"/v1/jobs/{job}/events")
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("Retry-After")) == (503, "5")
    assert json.loads(reply.read())["title"] == "Too many streams"
    connection.close()
    served.submit({"x": 2})
    for stream in streams:
        stream.close()
