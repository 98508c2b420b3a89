"""Checks of the policy servers by `/pool_status`: whether each is connected, and whether they serve the same policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from assay.doctor.finding import Finding, fail, ok, warn

NAME = "policy servers"
DEVELOPMENT = "assay-development"
#: Fix for deployments without policy servers, which do not need them unless they score instructions.
_OPTIONAL_FIX = (
    "start them on the device workers' host (`make policies`), or name them in ASSAY_POLICY_URLS; "
    "only the scorer `policy` needs them"
)


def check(status: dict[str, Any]) -> Iterator[Finding]:
    servers: Sequence[dict[str, Any]] = status.get("servers") or ()
    if not servers:
        yield warn(NAME, "no device worker reports a policy server", _OPTIONAL_FIX)
        return
    connected = [server for server in servers if server.get("connected")]
    if connected:
        policies = ", ".join(sorted(set(map(_served_policy, connected))))
        yield ok(NAME, f"{len(connected)} of {len(servers)} connected: {policies}")
        yield from _versions(connected)
    elif not any(server.get("digest") for server in servers):
        yield warn(NAME, f"0 of {len(servers)} connected: {_cause(servers[0])}", _OPTIONAL_FIX)
        return
    for server in servers:
        if not server.get("connected"):
            yield _disconnected(server)


def _disconnected(server: dict[str, Any]) -> Finding:
    """Check a server that is not connected, although it was connected before or other servers are connected."""
    if server.get("elsewhere"):
        fix = "start a policy server for each deployment: only a single device worker can use it at a time"
        return warn(NAME, _cause(server), fix)
    if not server.get("broken"):
        return warn(NAME, _cause(server), "wait a moment, then run doctor again")
    if "API key" in str(server.get("error")):
        return fail(NAME, _cause(server), "set ASSAY_POLICY_API_KEY for the device workers")
    fix = "look at its log (data/logs/pi0_gpu<n>.log on the host of `make policies`), or start it again"
    return fail(NAME, _cause(server), fix)


def _versions(connected: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    if any(not server.get("version") for server in connected):
        yield warn(NAME, "a server reports no version, so episodes are not cached", "set ASSAY_POLICY_VERSION")
    elif len({(server.get("policy"), server.get("version")) for server in connected}) > 1:
        fix = "restart the servers that serve the old checkpoint"
        yield warn(NAME, "the servers serve different policies, so episodes are not cached", fix)


def _served_policy(server: dict[str, Any]) -> str:
    name = " ".join(str(part) for part in (server.get("policy"), server.get("version")) if part) or "unnamed"
    return f"{name} (a script: its success rates mean nothing)" if server.get("policy") == DEVELOPMENT else name


def _cause(server: dict[str, Any]) -> str:
    if server.get("elsewhere"):
        return f"{server.get('url')} is in use by another process"
    return str(server.get("error") or f"{server.get('url')} is not connected yet")
