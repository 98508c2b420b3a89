"""Keys of outside APIs never appear in a log, argument, page, error or Redis, although the API echoes them."""

import json
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis

from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support.chat_api import ChatApi, Fault
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program, wait_until
from tests.support.redis_server import RedisServer

#: The secrets that each profile sends: a key in the form of a well-known API and a header; and a key in no known form.
SECRETS = {"main": ("sk-proj-0f1e2d3c4b5a69788796a5b4c3d2e1f0", "Hn5Rk8Yb4-header"), "filed": ("Zt9Qw3Lm7Xv2",)}
PROFILES = """
[profiles.main]
base_url = "{url}"
api_key_env = "THE_KEY"
models = ["judge"]
headers = {{ "X-Also" = "{header}" }}

[profiles.filed]
base_url = "{url}"
api_key_file = "{file}"
models = ["judge"]
"""


def faults(secrets: tuple[str, ...]) -> dict[str, Fault]:
    """Faults of every kind that an API may answer with, each of which echoes the secrets it received."""
    echo = f"Incorrect API key provided: {secrets[0]}, sent as Bearer {secrets[0]} with {secrets[-1]}"
    return {
        "unauthorized": Fault(401, {"error": {"message": echo, "code": "invalid_api_key"}}),
        "broken": Fault(500, {"error": {"message": echo}}),
        "plain": Fault(403, echo),
        "long": Fault(403, f"{'x' * 450} {echo}"),
        "nonsense": Fault(200, f"{'x' * 161} {echo}"),
        "nested": Fault(200, {"error": {"code": 400, "message": echo}}),
        "unschooled": Fault(400, {"error": {"message": f"response_format is not for you. {echo}"}}),
    }


FAULTS = {f"{name} of {profile}": fault for profile in SECRETS for name, fault in faults(SECRETS[profile]).items()}
PAGES = (
    "/v1/profiles", "/v1/profiles/main", "/v1/jobs", "/v1/jobs/{job}", "/v1/jobs/{job}/results",
    "/v1/jobs/{job}/events", "/v1/cache/explain?job={job}&index=0", "/v1/workers", "/v1/queues", "/ready", "/",
    "/metrics", "/v1/devices",
)  # fmt: skip
WATCHER = "watcher:of-the-workers"
FLOWER = ("/api/tasks", "/api/workers", "/tasks", "/workers", "/metrics")


@pytest.fixture
def echo_api() -> Iterator[ChatApi]:
    with ChatApi() as api:
        api.fault = lambda body: next(FAULTS[name] for name in FAULTS if name in json.dumps(body))
        yield api


def test_no_key_is_in_any_log_argument_page_error_or_redis(
    run: Callable[..., Program], echo_api: ChatApi, tmp_path: Path
) -> None:
    key_file, profiles = tmp_path / "key", tmp_path / "profiles.toml"
    (key, header), (filed,) = SECRETS["main"], SECRETS["filed"]
    key_file.write_text(filed)
    profiles.write_text(PROFILES.format(url=echo_api.url, header=header, file=key_file))
    with RedisServer(tmp_path / "state") as state, RedisServer(tmp_path / "cache", "cache") as cache:
        system = System(run, state, cache, tmp_path / "journal")
        told = {"ASSAY_PROFILES_FILE": str(profiles), "ASSAY_LOG_LEVEL": "DEBUG", "ASSAY_API_WORKERS_MAX": "1"}
        worker = system.launch("api", **told, THE_KEY=key)
        flower_port = free_port()
        flower = system.launch("flower", ASSAY_FLOWER_PORT=str(flower_port), ASSAY_FLOWER_BASIC_AUTH=WATCHER)
        web = Served(run, state.url, ASSAY_CACHE_URL=cache.url, **told)
        system.wait_for_workers(1)
        wait_until(lambda: page(f"http://127.0.0.1:{flower_port}/healthcheck"), "Flower answers")

        jobs = [submit(web, profile, [name for name in FAULTS if name.endswith(profile)]) for profile in SECRETS]
        errors = {row["id"]: row["error"]["message"] for job in jobs for row in results(web, job)}
        assert len(errors) == len(FAULTS)
        assert all("Incorrect API key provided: ***" in message for message in errors.values()), errors
        assert {seen.headers["authorization"] for seen in echo_api.seen} == {f"Bearer {key}", f"Bearer {filed}"}
        assert header in {seen.headers.get("x-also") for seen in echo_api.seen}

        programs = {"worker": worker, "flower": flower, "web": web.program}
        paths = {path.format(job=job) for job in jobs for path in PAGES}
        shown = {f"web {path}": str(web.ask("GET", path)[1]) for path in paths}
        shown |= {f"flower {path}": page(f"http://127.0.0.1:{flower_port}{path}") for path in FLOWER}
        shown |= {f"output of {name}": program.output for name, program in programs.items()}
        shown |= {f"arguments of {name}": arguments(program) for name, program in programs.items()}
        for server in (state, cache):
            shown |= {f"redis {key}": text for key, text in contents(Redis.from_url(server.url))}
        assert all(shown.values())
        assert "Incorrect API key provided" in shown["output of worker"]
        # Not even the first characters of a secret, which remain where a text is cut in the middle of it.
        starts = [secret[:9] for secrets in SECRETS.values() for secret in secrets]
        assert not [where for where, text in shown.items() if any(start in text for start in starts)]
        system.stop()


def submit(web: Served, profile: str, names: list[str]) -> str:
    items = [{"id": name, "response": name} for name in names]
    request = {"kind": "judge", "items": items, "spec": {"profile": profile, "max_retries": 1}}
    status, job = web.ask("POST", "/v1/jobs", request)
    assert status == 202, job
    return str(job["id"])


def results(web: Served, job: str) -> list[dict[str, Any]]:
    wait_until(lambda: web.ask("GET", f"/v1/jobs/{job}")[1]["state"] == "done", "the job ends")
    return list(web.ask("GET", f"/v1/jobs/{job}/results")[1]["results"])


def arguments(program: Program) -> str:
    processes = [psutil.Process(program.process.pid), *program.descendants()]
    return "\n".join(" ".join(process.cmdline()) for process in processes)


def page(url: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {b64encode(WATCHER.encode()).decode()}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return str(reply.read().decode(errors="replace"))
    except OSError:
        return ""


def contents(redis: Redis) -> Iterator[tuple[str, str]]:
    """Yield each key with its whole value. A key that expires between the scan and the read is left out."""
    with redis:
        for key in redis.scan_iter():
            read: dict[bytes, Callable[[bytes], Any]] = {
                b"string": redis.get, b"hash": redis.hgetall, b"set": redis.smembers, b"stream": redis.xrange,
                b"list": lambda name: redis.lrange(name, 0, -1),
                b"zset": lambda name: redis.zrange(name, 0, -1, withscores=True),
            }  # fmt: skip
            if (kind := redis.type(key)) != b"none":
                yield repr(key), f"{key!r} {read[kind](key)}"
