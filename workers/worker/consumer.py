"""Celery consumer that closes its connections after the connection to the broker is lost.

On Redis, kombu closes a channel by reading its remaining messages. This fails when Redis is gone, and then nothing is
closed: every restart of Redis leaked a socket, and some 300 KB with it, until the worker ended.
"""

from typing import Any

from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.transport.redis import Transport


class Consumer(CeleryConsumer):
    class Blueprint(CeleryConsumer.Blueprint):  # type: ignore[misc,valid-type]  # the stubs say a variable
        # With quorum queues, Celery would declare 28 queues and exchanges for tasks with an ETA, which no task of Assay
        # has.
        default_steps = tuple(step for step in CeleryConsumer.Blueprint.default_steps if "delayed_delivery" not in step)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        transport = self.connection.transport if self.connection else None
        channels: list[Any] = list(transport.channels or ()) if isinstance(transport, Transport) else []
        super().on_connection_error_after_connected(exc)
        for channel in channels:
            # kombu keeps a callback that requeues unacknowledged messages at exit; here the ledger does this.
            channel.qos._on_collect.cancel()
            # Disconnect the sockets, but keep the pools: a running task acknowledges its message through a pool later,
            # and the worker would end with an error without it.
            for pool in (channel._pool, channel._async_pool):
                if pool is not None:
                    pool.disconnect()
