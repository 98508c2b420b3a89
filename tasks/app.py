"""Factory of the Celery application, shared by the web process, the workers, beat and Flower."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from amqp.exceptions import AMQPError
from celery import Celery, Task
from kombu import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from config.celery import celery_config
from config.queues import BrokerQueues, Priority
from config.redis_urls import redact
from config.settings import Settings
from tasks.errors import BrokerUnavailable
from tasks.runtime import Runtime

#: Modules that define Celery tasks.
TASKS = ["tasks.probe", "tasks.jobs.execution.task", "tasks.rollouts.task", "tasks.deployment_benchmarks.task"]


class AssayCelery(Celery):
    """Celery application with the worker process's runtime for its tasks (None outside workers)."""

    runtime: Runtime | None = None
    queues = BrokerQueues("redis")

    def publish(self, task: str, queue: str, priority: Priority, **arguments: object) -> None:
        """Send a message to a queue. Raises UnknownQueue for an unknown queue name, and BrokerUnavailable."""
        with self._broker_errors():
            self.send_task(
                task,
                kwargs=arguments,
                queue=self.queues.declare_for(queue, priority),  # type: ignore[arg-type]  # the stubs know names only
                priority=self.queues.message_priority(priority),
                # A pooled connection to RabbitMQ does not reconnect by itself after a restart, as redis-py's do.
                retry=self.queues.is_rabbitmq,
                retry_policy={"max_retries": 1, "interval_start": 0},
            )

    def queued(self, queue: str) -> int:
        """Return the number of messages in this queue on the broker. Raises BrokerUnavailable."""
        with self._broker_errors(), self.connection_or_acquire() as connection:
            names = [each.name for each in self.queues.declare(queue)]
            if not self.queues.is_rabbitmq:
                return sum(_messages(connection, connection.default_channel, name) for name in names)
            # Connects again if the pooled connection is from before a restart of RabbitMQ.
            count = connection.ensure(connection, lambda: _count(connection, names), max_retries=1, interval_start=0)
            return int(count())

    @contextmanager
    def _broker_errors(self) -> Iterator[None]:
        try:
            yield
        # An established connection raises the errors of its own library.
        except (OperationalError, RedisError, AMQPError, OSError) as error:
            broker = redact(
                self.conf.broker_url.partition(";")[0]
            )  # the URL of the first Sentinel, if there are several
            raise BrokerUnavailable(f"The broker at {broker} does not answer ({error}).") from error


def _count(connection: Connection, names: list[str]) -> int:
    """Return the number of messages in these queues of RabbitMQ, some of which may not exist."""
    connection.ensure_connection(max_retries=1, interval_start=0)
    count = 0
    for name in names:
        with connection.channel() as channel:  # RabbitMQ closes the channel if the queue does not exist
            count += _messages(connection, channel, name)
    return count


def _messages(connection: Connection, channel: Any, name: str) -> int:  # the stubs do not know channels
    try:
        return int(channel.queue_declare(name, passive=True).message_count)
    except connection.channel_errors:  # the queue does not exist: on Redis, an empty list
        return 0


class AssayTask(Task):  # type: ignore[type-arg]  # generic in the stubs only
    """Base class of Assay's tasks: gives access to the runtime of the worker process."""

    @property
    def runtime(self) -> Runtime:
        runtime = cast(AssayCelery, self.app).runtime
        assert runtime is not None, "tasks run only in workers"
        return runtime


def create_celery(settings: Settings, consumed: Sequence[str] = ()) -> AssayCelery:
    """Create the application. `consumed`: the queues that this process consumes, if it is a worker."""
    app = AssayCelery("assay", task_cls=AssayTask, include=TASKS)
    app.queues = BrokerQueues.of(settings)
    app.conf.update(celery_config(settings, consumed))
    return app
