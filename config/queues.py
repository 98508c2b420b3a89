"""Names of queues and priorities: a queue per device slot, and the shared queues."""

import re
from dataclasses import dataclass
from typing import Literal

from kombu import Exchange, Queue

from config.pools import SHARED_QUEUES, WorkerPool

Priority = Literal["interactive", "normal", "bulk"]
#: In the order in which they are served.
PRIORITIES: tuple[Priority, ...] = ("interactive", "normal", "bulk")

_DEVICE_QUEUE = re.compile(r"gpu\.([a-z0-9][a-z0-9-]{0,62})\.(0|[1-9][0-9]{0,3})")


class UnknownQueue(ValueError):
    """The queue does not exist: use a shared queue, or `gpu.<node>.<slot>`."""


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """Place for a device worker on a host."""

    node: str
    index: int


def queue_for(slot: Slot) -> str:
    return f"gpu.{slot.node}.{slot.index}"


def queues_of(pool: WorkerPool, slot: Slot | None = None) -> tuple[str, ...]:
    """Return the queues that a worker of this pool reads. `slot`: the slot of a device worker."""
    if slot:
        return (queue_for(slot),)
    return (pool,) if pool in SHARED_QUEUES else ()


def slot_of(queue: str) -> Slot | None:
    """Parse a queue name to its device slot; None for the shared queues. Raises UnknownQueue."""
    if queue in SHARED_QUEUES:
        return None
    if not (match := _DEVICE_QUEUE.fullmatch(queue)):
        shared = ", ".join(SHARED_QUEUES)
        raise UnknownQueue(f"Unknown queue {queue!r}: queues are {shared} and gpu.<node>.<slot>, e.g. gpu.node1.0.")
    return Slot(match[1], int(match[2]))


def declare(queue: str, broker_url: str) -> Queue:
    """Return Celery's declaration of a queue. Raises UnknownQueue, so that a misspelt name never creates a queue."""
    slot_of(queue)
    # On the default exchange a queue needs no binding: Redis then holds only the list itself.
    arguments = {"x-max-priority": len(PRIORITIES) - 1} if broker_url.startswith("amqp") else None
    return Queue(queue, Exchange(""), routing_key=queue, queue_arguments=arguments)


def message_priority(priority: Priority, broker_url: str) -> int:
    """Return the broker's number of a priority: Redis serves 0 first, RabbitMQ serves it last."""
    rank = PRIORITIES.index(priority)
    return len(PRIORITIES) - 1 - rank if broker_url.startswith("amqp") else rank
