"""The policy servers, as `/pool_status` shows them: which work, which do not, and whether they serve the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from assay.doctor.finding import Finding, fail, ok, warn

NAME = "policy servers"
DEVELOPMENT = "assay-development"
#: For deployments that score no instructions.
_IF_WANTED = (
    "start them on the device workers' host (`make policies`), or name them in ASSAY_POLICY_URLS; "
    "only the scorer `policy` needs them"
)


def check(status: dict[str, Any]) -> Iterator[Finding]:
    servers: Sequence[dict[str, Any]] = status.get("servers") or ()
    if not servers:
        yield warn(NAME, "no device worker tells of any", _IF_WANTED)
        return
    there = [server for server in servers if server.get("connected")]
    if there:
        yield ok(NAME, f"{len(there)} of {len(servers)} connected: {', '.join(sorted(set(map(_served, there))))}")
        yield from _versions(there)
    elif not any(server.get("digest") for server in servers):
        yield warn(NAME, f"none of {len(servers)} is connected: {_why(servers[0])}", _IF_WANTED)
        return
    for server in servers:
        if not server.get("connected"):
            yield _missing(server)


def _missing(server: dict[str, Any]) -> Finding:
    """One that was there before, or beside others that are."""
    if server.get("elsewhere"):
        return warn(NAME, _why(server), "a server belongs to one device worker at a time: give each deployment its own")
    if not server.get("broken"):
        return warn(NAME, _why(server), "wait a moment, and look again")
    if "API key" in str(server.get("error")):
        return fail(NAME, _why(server), "set ASSAY_POLICY_API_KEY for the device workers")
    return fail(
        NAME, _why(server), "look at its log (data/logs/pi0_gpu<n>.log where `make policies` runs), or start it again"
    )


def _versions(there: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if any(not server.get("version") for server in there):
        yield warn(NAME, "some say no version, so that no episode is cached", "set ASSAY_POLICY_VERSION")
    elif len({(server.get("policy"), server.get("version")) for server in there}) > 1:
        fix = "restart those that serve the old checkpoint"
        yield warn(NAME, "they serve different policies, so that no episode is cached", fix)


def _served(server: dict[str, Any]) -> str:
    name = " ".join(str(part) for part in (server.get("policy"), server.get("version")) if part) or "unnamed"
    return f"{name} (a script: its success rates mean nothing)" if server.get("policy") == DEVELOPMENT else name


def _why(server: dict[str, Any]) -> str:
    if server.get("elsewhere"):
        return f"{server.get('url')} is used by another process"
    return str(server.get("error") or f"{server.get('url')} is not connected yet")
