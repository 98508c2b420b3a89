"""The Celery application: one factory for the web process, the workers, beat and Flower."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from celery import Celery, Task
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from config.celery import celery_config
from config.queues import Priority, declare, message_priority
from config.settings import Settings
from tasks.connections import redact
from tasks.errors import BrokerUnavailable
from tasks.runtime import Runtime

#: The modules that have tasks.
TASKS = ["tasks.probe", "tasks.jobs.task", "tasks.rollouts.task", "tasks.benchmarks.task"]


class AssayCelery(Celery):
    """Celery, plus what the process holds for its tasks (None outside workers)."""

    runtime: Runtime | None = None

    def publish(self, task: str, queue: str, priority: Priority, **arguments: object) -> None:
        """Put one message on a queue. Unknown queue names raise UnknownQueue."""
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
        """Messages that wait on the broker for this queue."""
        with self._broker_errors(), self.connection_or_acquire() as connection:
            try:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
            except connection.channel_errors:  # an empty list does not exist on Redis
                return 0

    @contextmanager
    def _broker_errors(self) -> Iterator[None]:
        try:
            yield
        # A connection that was fine before raises its library's own errors.
        except (OperationalError, RedisError, OSError) as error:
            raise BrokerUnavailable(
                f"The broker at {redact(self.conf.broker_url)} does not answer ({error})."
            ) from error


class AssayTask(Task):  # type: ignore[type-arg]  # generic in the stubs only
    """Base of all our tasks: gives them their process's runtime."""

    @property
    def runtime(self) -> Runtime:
        runtime = cast(AssayCelery, self.app).runtime
        assert runtime is not None, "tasks run in workers only"
        return runtime


def create_celery(settings: Settings, consumed: Sequence[str] = ()) -> AssayCelery:
    """The application; `consumed` are the queues this process reads, if it is a worker."""
    app = AssayCelery("assay", task_cls=AssayTask, include=TASKS)
    app.conf.update(celery_config(settings, consumed))
    return app
