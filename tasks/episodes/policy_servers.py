"""Status of policy servers, reported by the process connected to each server, and the summary over the servers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PolicyServer:
    url: str
    host: str
    port: int
    connected: bool
    busy: bool
    broken: bool
    """Whether the connection failed and is not yet restored."""
    elsewhere: bool
    """Whether a different process owns the server."""
    error: str
    policy: str
    version: str
    """Version of the policy; empty when unknown, so that checkpoints cannot be distinguished."""
    digest: str
    """Hash of the server's metadata; empty before the first connection."""
    calls: int
    errors: int
    reconnects: int
    latency_ms: float | None
    """Mean latency of the last calls."""
    latency_max_ms: float | None


def common_policy(servers: Sequence[PolicyServer]) -> dict[str, str] | None:
    """Return the policy that every connected server serves, for cache keys; None if servers differ or the version is
    unknown."""
    found = {(server.policy, server.version) for server in servers if server.connected}
    if len(found) != 1:
        return None
    policy, version = found.pop()
    return {"name": policy, "version": version} if version else None


def pool_status(servers: Sequence[PolicyServer]) -> dict[str, Any]:
    """Return the body of `GET /pool_status`: its three conventional fields, and the status of each server."""
    return {
        "total_clients": len(servers),
        "available_clients": sum(server.connected and not server.busy for server in servers),
        "hosts_ports": [[server.host, server.port] for server in servers],
        "connected": sum(server.connected for server in servers),
        "busy": sum(server.busy for server in servers),
        "broken": sum(server.broken for server in servers),
        "servers": [asdict(server) for server in servers],
    }
