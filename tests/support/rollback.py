"""Rollback of a real Redis to an earlier moment, as after a failover to a lagging replica or a loss of power."""

from redis import Redis

from tests.support.programs import PATIENCE_S

#: Key -> TTL in milliseconds (0: none) and serialized value.
Dump = dict[bytes, tuple[int, bytes]]


def _connect(url: str) -> Redis:
    return Redis.from_url(url, socket_timeout=PATIENCE_S)


def save(url: str) -> Dump:
    with _connect(url) as client:
        names = list(client.keys("*"))
        pipeline = client.pipeline(transaction=True)
        for name in names:
            pipeline.pttl(name)
            pipeline.dump(name)
        replies = pipeline.execute()
    rows = zip(names, replies[::2], replies[1::2], strict=True)
    return {name: (max(0, ttl), value) for name, ttl, value in rows if value is not None}


def roll_back(url: str, dump: Dump) -> None:
    """Replace everything that Redis holds by an earlier dump."""
    with _connect(url) as client:
        pipeline = client.pipeline(transaction=True)
        pipeline.flushall()
        for name, (ttl, value) in dump.items():
            pipeline.restore(name, ttl, value)
        pipeline.execute()
