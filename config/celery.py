"""Configuration of Celery, with the reason for each value. Measurements are in docs/architecture.md."""

from collections.abc import Sequence
from typing import Any

from config.queues import PRIORITIES, BrokerQueues
from config.redis_urls import SentinelUrl, is_sentinel
from config.schedule import LATE_S, parse_schedule
from config.settings import Settings

#: The queue of tasks that no job names, such as the start of a scheduled benchmark.
_OWN_TASKS = "cpu"


def celery_config(settings: Settings, consumed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the configuration of a process. `consumed`: the queues that it consumes, if it is a worker."""
    broker = settings.broker_url
    queues = BrokerQueues.of(settings)
    declared = [each for name in consumed or [_OWN_TASKS] for each in queues.declare(name)]
    return {
        "broker_url": SentinelUrl.parse(broker).broker_url() if is_sentinel(broker) else broker,
        "broker_use_ssl": SentinelUrl.parse(broker).broker_tls() if is_sentinel(broker) else None,
        "broker_connection_retry_on_startup": True,
        # The default gives up after 100 attempts; workers must survive a Redis that is down over night.
        "broker_connection_max_retries": None,
        # RabbitMQ closes the channel of a worker that holds a message longer than its delivery timeout. Reconnect and
        # continue the task; without this the worker would exit, and the items would run again, for as long again.
        "broker_channel_error_retry": queues.is_rabbitmq,
        # Short, because a request for a queue's length waits for this attempt to connect.
        "broker_connection_timeout": 2,
        "broker_transport_options": _rabbitmq_options() if queues.is_rabbitmq else _redis_options(settings),
        # Results live in the ledger and the cache; Celery's own result backend would duplicate them.
        "task_ignore_result": True,
        "result_backend": None,
        # Otherwise beat would clean the result backend every night.
        "result_expires": None,
        # JSON only: a message can name work but never carry code.
        "accept_content": ["json"],
        "task_serializer": "json",
        # A message is acknowledged at the end of its task, and redelivered if its process dies; the ledger decides
        # whether the redelivered task runs.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        # A worker prefetches only messages that it can start; other messages stay available to other workers.
        "worker_prefetch_multiplier": 1,
        # The default of 4 s kills a child that still loads a model, again and again.
        "worker_proc_alive_timeout": 600,
        # True crashes celery 5.6.3 when Redis restarts under a running task.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # After SIGQUIT, running chunks get this many seconds, then they return to the queue.
        "worker_soft_shutdown_timeout": settings.stop_grace_s,
        "worker_enable_soft_shutdown_on_idle": False,
        # config.logging configures the logging of every process.
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        # Events, for Flower. Not `task-sent`: it would add a third to every submit in the web process (3.7 ms instead
        # of 2.8 ms for a single item), and the ledger already shows waiting items.
        "worker_send_task_events": True,
        "task_send_sent_event": False,
        # Only declared queues exist: a wrong name raises an error at once, instead of creating a queue without readers.
        "task_create_missing_queues": False,
        "task_queues": declared,
        # Must be a declared queue; every message names its queue, so the default is never used.
        "task_default_queue": declared[0].name,
        "task_default_exchange": "",
        "task_default_routing_key": declared[0].name,
        "task_default_priority": queues.message_priority("normal"),
        "timezone": "UTC",
        "beat_schedule": beat_schedule(settings),
        # Maximum seconds between two checks of the schedule by beat; its heartbeat has a separate thread.
        "beat_max_loop_interval": 5,
        # After a longer downtime of beat, missed benchmarks are skipped: they would run in the middle of the day.
        "beat_cron_starting_deadline": LATE_S,
    }


def _rabbitmq_options() -> dict[str, Any]:
    # Without a timeout, publishing to a frozen RabbitMQ blocks without end.
    return {"read_timeout": 15, "write_timeout": 15}


def _redis_options(settings: Settings) -> dict[str, Any]:
    broker = settings.broker_url
    return (SentinelUrl.parse(broker).transport_options() if is_sentinel(broker) else {}) | {
        # Longer than the longest chunk: kombu does not renew it, and a shorter timeout redelivers a running task.
        "visibility_timeout": settings.visibility_timeout_s,
        # Messages of dead workers are restored every 5 s; the default is about 100 s.
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        # A list per priority; the first list is served first.
        "priority_steps": list(range(len(PRIORITIES))),
        # Without a timeout, publishing to a frozen Redis blocks without end.
        "socket_timeout": 15,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
    }


def beat_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return the schedule of beat: the benchmarks of the settings."""
    queues = BrokerQueues.of(settings)
    queue, priority = queues.declare_for(_OWN_TASKS, "bulk").name, queues.message_priority("bulk")
    return {
        f"benchmark {each.name} {each.fields}": each.entry(queue, priority)
        for each in parse_schedule(settings.benchmarks)
    }
