"""Policy servers as others see them: each told by the process that is connected to it, and all of them together."""

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
    """Not connected, after having failed."""
    elsewhere: bool
    """Another process owns it."""
    error: str
    policy: str
    version: str
    """Empty: unknown, so that one checkpoint cannot be told from the next."""
    digest: str
    """Of all that the server says of itself; empty before it was first connected."""
    calls: int
    errors: int
    reconnects: int
    latency_ms: float | None
    """Mean of the last calls."""
    latency_max_ms: float | None


def one_policy(servers: Sequence[PolicyServer]) -> dict[str, str] | None:
    """What episodes are cached under, as far as it can be told beforehand: the policy that all connected servers serve.
    None while there are several, or its version is not known."""
    found = {(server.policy, server.version) for server in servers if server.connected}
    if len(found) != 1:
        return None
    policy, version = found.pop()
    return {"name": policy, "version": version} if version else None


def pool_status(servers: Sequence[PolicyServer]) -> dict[str, Any]:
    """`GET /pool_status`: its three customary fields, and what is known of each server."""
    return {
        "total_clients": len(servers),
        "available_clients": sum(server.connected and not server.busy for server in servers),
        "hosts_ports": [[server.host, server.port] for server in servers],
        "connected": sum(server.connected for server in servers),
        "busy": sum(server.busy for server in servers),
        "broken": sum(server.broken for server in servers),
        "servers": [asdict(server) for server in servers],
    }
