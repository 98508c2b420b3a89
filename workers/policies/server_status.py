"""Status of a policy server, as its pool reports it."""

from typing import Literal

from tasks.episodes.policy_servers import PolicyServer
from workers.policies.connection import Connection

State = Literal["away", "free", "busy", "elsewhere"]


def status_of(connection: Connection, state: State) -> PolicyServer:
    counts, times = connection.counts, list(connection.counts.latencies_ms)
    return PolicyServer(
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
