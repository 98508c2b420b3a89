"""Celery's consumer, which lets go of the connections to a broker that went away.

kombu closes a channel by reading what is left on it, which fails when Redis is gone, and closes nothing then: every
restart of Redis left a socket, and some 300 KB with it, until the worker ended.
"""

from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.transport.redis import Transport


class Consumer(CeleryConsumer):
    def on_connection_error_after_connected(self, exc: Exception) -> None:
        transport = self.connection.transport if self.connection else None
        channels: list[Any] = list(transport.channels or ()) if isinstance(transport, Transport) else []
        super().on_connection_error_after_connected(exc)
        for channel in channels:
            # kombu holds on to it, to give back in the end what was not acknowledged; the ledger knows better.
            channel.qos._on_collect.cancel()
            # Its sockets, not its pools: through them a task that still runs acknowledges its message later, and the
            # worker ends with an error if they are gone.
            for pool in (channel._pool, channel._async_pool):
                if pool is not None:
                    pool.disconnect()
