"""What a pool says of its servers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from workers.policies.connection import Connection

State = Literal["away", "free", "busy", "elsewhere"]


@dataclass(frozen=True, slots=True)
class ServerStatus:
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
    digest: str
    """Which policy it serves, as `workers.policies.identity` has it; empty before it was first connected."""
    calls: int
    errors: int
    reconnects: int
    latency_ms: float | None
    """Mean of the last calls."""
    latency_max_ms: float | None

    @classmethod
    def of(cls, connection: Connection, state: State) -> "ServerStatus":
        counts, times = connection.counts, list(connection.counts.latencies_ms)
        return cls(
            url=connection.address.url,
            host=connection.address.host,
            port=connection.address.port,
            connected=state in ("free", "busy"),
            busy=state == "busy",
            broken=state == "away" and bool(connection.error),
            elsewhere=state == "elsewhere",
            error=connection.error if state == "away" else "",
            policy=connection.policy.name,
            version=connection.policy.version,
            digest=connection.policy.digest,
            calls=counts.calls,
            errors=counts.errors,
            reconnects=counts.reconnects,
            latency_ms=round(sum(times) / len(times), 3) if times else None,
            latency_max_ms=round(max(times), 3) if times else None,
        )


def pool_status(servers: Sequence[ServerStatus]) -> dict[str, Any]:
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
