"""Names of queues and priorities: a queue per device slot, and the shared queues."""

import re
from dataclasses import dataclass
from typing import Literal, Self

from kombu import Exchange, Queue

from config.pools import SHARED_QUEUES, WorkerPool
from config.settings import Settings

Priority = Literal["interactive", "normal", "bulk"]
#: In the order in which they are served.
PRIORITIES: tuple[Priority, ...] = ("interactive", "normal", "bulk")

QueueForm = Literal["redis", "classic", "quorum"]
#: Seconds without a consumer after which RabbitMQ deletes a queue, such as the queues of a host that was removed. Its
#: messages are only hints, and a worker that starts later declares its queues again.
UNUSED_S = 7 * 86400
#: RabbitMQ's default `consumer_timeout` in seconds: it closes the channel of a worker that holds a message for
#: longer.
DELIVERY_TIMEOUT_S = 30 * 60

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


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """The broker's queues that carry the messages of our queues, and how they carry priorities.

    On Redis, and on RabbitMQ with classic queues, a queue is one queue with three priorities. RabbitMQ's quorum queues
    have no priorities up to version 3.13, so there a queue is three queues: `cpu.interactive`, `cpu.normal`,
    `cpu.bulk`.
    """

    form: QueueForm

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.rabbitmq_queues if settings.broker_url.startswith("amqp") else "redis")

    @property
    def is_rabbitmq(self) -> bool:
        return self.form != "redis"

    def declare(self, queue: str) -> list[Queue]:
        """Return Celery's declarations of every broker queue of a queue. Raises UnknownQueue."""
        found = {each.name: each for each in (self.declare_for(queue, priority) for priority in PRIORITIES)}
        return list(found.values())

    def declare_for(self, queue: str, priority: Priority) -> Queue:
        """Return Celery's declaration of the broker queue for messages of a priority. Raises UnknownQueue, so that a
        misspelt name never creates a queue."""
        slot_of(queue)
        name = f"{queue}.{priority}" if self.form == "quorum" else queue
        # On the default exchange a queue needs no binding: Redis then holds only the list itself.
        return Queue(name, Exchange(""), routing_key=name, queue_arguments=self._arguments())

    def _arguments(self) -> dict[str, object] | None:
        match self.form:
            case "redis":
                return None
            case "classic":
                return {"x-max-priority": len(PRIORITIES) - 1, "x-expires": 1000 * UNUSED_S}
            case "quorum":
                return {"x-queue-type": "quorum", "x-expires": 1000 * UNUSED_S}

    def message_priority(self, priority: Priority) -> int:
        """Return the broker's number of a priority: Redis serves 0 first, RabbitMQ serves it last."""
        rank = PRIORITIES.index(priority)
        return len(PRIORITIES) - 1 - rank if self.is_rabbitmq else rank
