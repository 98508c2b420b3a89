"""Factory of the Celery application, shared by the web process, the workers, beat and Flower."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from celery import Celery, Task
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from config.celery import celery_config
from config.queues import Priority, declare, message_priority
from config.redis_urls import redact
from config.settings import Settings
from tasks.errors import BrokerUnavailable
from tasks.runtime import Runtime

#: Modules that define Celery tasks.
TASKS = ["tasks.probe", "tasks.jobs.execution.task", "tasks.rollouts.task", "tasks.deployment_benchmarks.task"]


class AssayCelery(Celery):
    """Celery application with the worker process's runtime for its tasks (None outside workers)."""

    runtime: Runtime | None = None

    def publish(self, task: str, queue: str, priority: Priority, **arguments: object) -> None:
        """Send a message to a queue. Raises UnknownQueue for an unknown queue name, and BrokerUnavailable."""
        broker = self.conf.broker_url
        with self._broker_errors():
            self.send_task(
                task,
                kwargs=arguments,
                queue=declare(queue, broker),  # type: ignore[arg-type]  # the stubs know names only
                priority=message_priority(priority, broker),
                retry=False,
            )

    def queued(self, queue: str) -> int:
        """Return the number of messages in this queue on the broker. Raises BrokerUnavailable."""
        with self._broker_errors(), self.connection_or_acquire() as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:  # on Redis, an empty list does not exist
                return 0

    @contextmanager
    def _broker_errors(self) -> Iterator[None]:
        try:
            yield
        # An established connection raises the errors of its own library.
        except (OperationalError, RedisError, OSError) as error:
            broker = redact(
                self.conf.broker_url.partition(";")[0]
            )  # the URL of the first Sentinel, if there are several
            raise BrokerUnavailable(f"The broker at {broker} does not answer ({error}).") from error


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
    app.conf.update(celery_config(settings, consumed))
    return app
