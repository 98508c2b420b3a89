"""Checks of a deployment by its HTTP API: connection, token, clock, readiness, workers, devices and queues."""

from __future__ import annotations

import email.utils
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from assay import calls
from assay.client import Assay
from assay.doctor import policies
from assay.doctor.finding import Finding, fail, ok, skip, warn
from assay.errors import ApiError, AssayError, ConnectionFailed, Unauthorized
from assay.version import VERSION

#: Tolerated clock difference in seconds: a Date header has whole seconds, and the response has a latency.
CLOCK_TOLERANCE_S = 5.0
#: Share of a device's memory above which the next model may not fit.
FULL_MEMORY = 0.95


def check(client: Assay) -> Iterator[Finding]:
    try:
        reply = client.call(calls.raw_reply("/health", accepted=tuple(range(300, 600))))
    except ConnectionFailed as error:
        yield fail("server", f"{client.url}: {error}", "start it (`make up` in its checkout), or set ASSAY_URL")
        return
    if reply.status != 200:
        fix = "check that this is an Assay server, and set ASSAY_URL"
        yield fail("server", f"{client.url}/health responds with HTTP {reply.status}", fix)
        return
    yield ok("server", f"{client.url} responds")
    yield _clock(reply.headers.get("date", ""))
    yield _version(client)
    try:
        queues = client.queues()
    except Unauthorized as error:
        yield fail("token", str(error), "set ASSAY_TOKEN to a token of this server")
        return
    except AssayError as error:
        queues = None
        yield warn("token", f"cannot be checked while /v1/queues fails: {error}", "fix the problems of `ready` below")
    else:
        yield ok("token", "accepted, or not required")
    yield from _ready(client)
    yield from _check_list("workers", client.workers, workers)
    yield from _check_list("devices", client.devices, devices)
    yield from _check_list(policies.NAME, client.pool_status, policies.check)
    if queues is not None:
        yield from check_queues(queues)


def _clock(date: str) -> Finding:
    parsed = email.utils.parsedate_tz(date)
    if not parsed:
        return skip("clock", "the server sends no Date header")
    skew_s = time.time() - email.utils.mktime_tz(parsed)
    if abs(skew_s) <= CLOCK_TOLERANCE_S:
        return ok("clock", f"within {CLOCK_TOLERANCE_S:.0f} s of the server's")
    relation = "ahead of" if skew_s > 0 else "behind"
    fix = "run NTP on both hosts (`timedatectl set-ntp true`)"
    return warn("clock", f"this host is {abs(skew_s):.0f} s {relation} the server", fix)


def _version(client: Assay) -> Finding:
    try:
        version = client.call(calls.raw_reply("/openapi.json")).json().get("info", {}).get("version")
    except AssayError:
        version = None
    if not version:
        return skip("version", f"the server does not report it; this client is {VERSION}")
    return ok("version", f"server {version}, client {VERSION}")


def _ready(client: Assay) -> Iterator[Finding]:
    try:
        readiness = client.call(calls.raw_reply("/ready", accepted=(503,))).json()
    except AssayError as error:
        yield fail("ready", str(error), "look at the web process's log")
        return
    missing = readiness.get("missing") or []
    for note in readiness.get("notes") or []:
        if note.startswith("storage "):
            yield fail("storage", note, "free space on it, or make it reachable; the jobs then continue by themselves")
    if readiness.get("ready"):
        yield ok("ready", "Redis responds, and every pool has a worker")
    for problem in missing:
        yield fail("ready", problem, _fix(problem))
    if not readiness.get("ready") and not missing:
        yield fail("ready", "the server is not ready and reports no cause", "look at the web process's log")
    yield from _check_profiles("API keys", readiness.get("api_profiles"))


def _fix(problem: str) -> str:
    for phrase, pool in (("device worker", "device"), ("api worker", "api"), ("cpu worker", "cpu")):
        if phrase in problem:
            return f"start that pool on a host: python -m workers.launch {pool}"
    if "edis" in problem:
        return "start Redis, or correct ASSAY_REDIS_URL, ASSAY_BROKER_URL or ASSAY_CACHE_URL of the server"
    return "look up the problem in docs/operations.md"


def _check_profiles(name: str, rows: Any) -> Iterator[Finding]:
    """Check the API profiles that a newer server reports, as a list of {name, ok, detail}."""
    if rows is None:
        yield skip(name, "the server does not report them")
        return
    for row in rows:
        shown = f"{row.get('name')}: {row.get('detail') or ('ok' if row.get('ok') else 'does not work')}"
        yield ok(name, shown) if row.get("ok") else fail(name, shown, "correct it in the server's settings")
    if not rows:
        yield ok(name, "no profile is configured")


def _check_list(name: str, request: Any, check: Any) -> Iterator[Finding]:
    try:
        rows = request()
    except ApiError as error:
        yield skip(name, str(error))
        return
    yield from check(rows)


def workers(rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if not rows:
        fix = "start workers: `make up`, or python -m workers.launch POOL on each host"
        yield fail("workers", "no worker is running", fix)
        return
    pools = Counter(str(row.get("pool")) for row in rows)
    yield ok("workers", ", ".join(f"{count} {pool}" for pool, count in sorted(pools.items())))
    for row in rows:
        if row.get("state") not in ("ready", None):
            yield warn("workers", f"{row.get('name')} is {row.get('state')}", "wait a moment, then look at its log")
    for package in sorted({name for row in rows for name in row.get("versions") or {}}):
        found = {row["versions"][package] for row in rows if package in (row.get("versions") or {})}
        if len(found) > 1:
            detail = f"workers run different versions of {package}: {' and '.join(sorted(found))}"
            yield warn("workers", detail, "install the same release on every host")


def devices(rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if not rows:
        yield warn("devices", "no device slot is registered", "start device workers: python -m workers.launch device")
        return
    gpus = sum(len(row.get("devices") or ()) for row in rows)
    yield ok("devices", f"{len(rows)} slots on {gpus} GPUs" if gpus else f"{len(rows)} CPU slots, no GPU")
    for row in rows:
        used, total = row.get("memory_used_mb"), row.get("memory_total_mb")
        if used is not None and total and used / total > FULL_MEMORY:
            full = f"{row.get('queue')} has {used:.0f} of {total:.0f} MB in use"
            fix = "find the processes that use the GPU (nvidia-smi), or configure fewer slots (ASSAY_SLOTS)"
            yield warn("devices", full, fix)
    if gpus and all(row.get("memory_total_mb") is None for row in rows):
        yield skip("GPU memory", "the server does not report it; run doctor on the GPU host, in its checkout")


def check_queues(rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    waiting = sum(row.get("waiting") or 0 for row in rows)
    yield ok("queues", f"{len(rows)} queues, {waiting} messages waiting")
    for row in rows:
        name = row.get("queue")
        if row.get("paused") or row.get("state") in ("paused", "draining"):
            yield warn("queues", f"{name} is {row.get('state') or 'paused'}", f"POST /v1/queues/{name}/resume")
        elif row.get("waiting") and not row.get("workers"):
            yield fail("queues", f"{name} has {row['waiting']} messages and no worker", "start a worker for this queue")
