"""A deployment as its HTTP API shows it: reachable, the token, the clock, what is ready, who works, what waits."""

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

#: A Date header has whole seconds, and the answer took a moment.
CLOCK_TOLERANCE_S = 5.0
#: Share of a device's memory above which the next model may not fit.
FULL_MEMORY = 0.95


def check(client: Assay) -> Iterator[Finding]:
    try:
        reply = client.call(calls.whole("/health", accepted=tuple(range(300, 600))))
    except ConnectionFailed as error:
        yield fail("server", f"{client.url}: {error}", "start it (`make up` in its checkout), or set ASSAY_URL")
        return
    if reply.status != 200:
        yield fail(
            "server", f"{client.url}/health answers HTTP {reply.status}", "is this an Assay server? set ASSAY_URL"
        )
        return
    yield ok("server", f"{client.url} answers")
    yield _clock(reply.headers.get("date", ""))
    yield _version(client)
    try:
        queues = client.queues()
    except Unauthorized as error:
        yield fail("token", str(error), "set ASSAY_TOKEN to a token of this server")
        return
    except AssayError as error:
        queues = None
        yield warn("token", f"cannot be checked while /v1/queues fails: {error}", "mend what `ready` names below")
    else:
        yield ok("token", "accepted, or not asked for")
    yield from _ready(client)
    yield from _listed("workers", client.workers, workers)
    yield from _listed("devices", client.devices, devices)
    yield from _listed(policies.NAME, client.pool_status, policies.check)
    if queues is not None:
        yield from check_queues(queues)


def _clock(date: str) -> Finding:
    parsed = email.utils.parsedate_tz(date)
    if not parsed:
        return skip("clock", "the server sends no Date")
    skew_s = time.time() - email.utils.mktime_tz(parsed)
    if abs(skew_s) <= CLOCK_TOLERANCE_S:
        return ok("clock", f"within {CLOCK_TOLERANCE_S:.0f} s of the server's")
    late = "ahead of" if skew_s > 0 else "behind"
    return warn(
        "clock", f"this host is {abs(skew_s):.0f} s {late} the server", "run NTP on both (`timedatectl set-ntp true`)"
    )


def _version(client: Assay) -> Finding:
    try:
        told = client.call(calls.whole("/openapi.json")).json().get("info", {}).get("version")
    except AssayError:
        told = None
    if not told:
        return skip("version", f"the server does not tell; this client is {VERSION}")
    return ok("version", f"server {told}, client {VERSION}")


def _ready(client: Assay) -> Iterator[Finding]:
    try:
        told = client.call(calls.whole("/ready", accepted=(503,))).json()
    except AssayError as error:
        yield fail("ready", str(error), "look at the web process's log")
        return
    missing = told.get("missing") or []
    if told.get("ready"):
        yield ok("ready", "Redis answers, and every pool has a worker")
    for what in missing:
        yield fail("ready", what, _fix(what))
    if not told.get("ready") and not missing:
        yield fail("ready", "the server is not ready and does not say why", "look at the web process's log")
    yield from _told("API keys", told.get("api_profiles"))


def _fix(what: str) -> str:
    for sign, pool in (("device worker", "device"), ("api worker", "api"), ("cpu worker", "cpu")):
        if sign in what:
            return f"start that pool on some host: python -m workers.launch {pool}"
    if "edis" in what:
        return "start Redis, or correct ASSAY_REDIS_URL, ASSAY_BROKER_URL or ASSAY_CACHE_URL of the server"
    return "docs/operations.md lists what to do"


def _told(name: str, rows: Any) -> Iterator[Finding]:
    """Parts a newer server may tell of, as a list of {name, ok, detail}."""
    if rows is None:
        yield skip(name, "the server does not tell")
        return
    for row in rows:
        shown = f"{row.get('name')}: {row.get('detail') or ('fine' if row.get('ok') else 'does not work')}"
        yield ok(name, shown) if row.get("ok") else fail(name, shown, "correct it in the server's settings")
    if not rows:
        yield ok(name, "none are configured")


def _listed(name: str, ask: Any, judge: Any) -> Iterator[Finding]:
    try:
        rows = ask()
    except ApiError as error:
        yield skip(name, str(error))
        return
    yield from judge(rows)


def workers(rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if not rows:
        yield fail("workers", "none is there", "start them: `make up`, or python -m workers.launch POOL on each host")
        return
    pools = Counter(str(row.get("pool")) for row in rows)
    yield ok("workers", ", ".join(f"{count} {pool}" for pool, count in sorted(pools.items())))
    for row in rows:
        if row.get("state") not in ("ready", None):
            yield warn("workers", f"{row.get('name')} is {row.get('state')}", "wait a moment; then look at its log")
    for package in sorted({name for row in rows for name in row.get("versions") or {}}):
        found = {row["versions"][package] for row in rows if package in (row.get("versions") or {})}
        if len(found) > 1:
            yield warn(
                "workers", f"they run {package} {' and '.join(sorted(found))}", "install the same release everywhere"
            )


def devices(rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if not rows:
        yield warn("devices", "no device slot is there", "start them: python -m workers.launch device")
        return
    gpus = sum(len(row.get("devices") or ()) for row in rows)
    yield ok("devices", f"{len(rows)} slots on {gpus} GPUs" if gpus else f"{len(rows)} CPU slots, no GPU")
    for row in rows:
        used, total = row.get("memory_used_mb"), row.get("memory_total_mb")
        if used is not None and total and used / total > FULL_MEMORY:
            full = f"{row.get('queue')} has {used:.0f} of {total:.0f} MB in use"
            yield warn("devices", full, "see what else runs there (nvidia-smi); fewer slots (ASSAY_SLOTS)")
    if gpus and all(row.get("memory_total_mb") is None for row in rows):
        yield skip("GPU memory", "the server does not tell; run doctor on the GPU host, in its checkout")


def check_queues(rows: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    waiting = sum(row.get("waiting") or 0 for row in rows)
    yield ok("queues", f"{len(rows)} queues, {waiting} messages waiting")
    for row in rows:
        name = row.get("queue")
        if row.get("paused") or row.get("state") in ("paused", "draining"):
            yield warn("queues", f"{name} is {row.get('state') or 'paused'}", f"POST /v1/queues/{name}/resume")
        elif row.get("waiting") and not row.get("workers"):
            yield fail("queues", f"{name} has {row['waiting']} messages and no worker", "start a worker for it")
