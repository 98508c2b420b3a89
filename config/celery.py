"""How Celery is set up, with the reason for each value. What was measured is in docs/architecture.md."""

from collections.abc import Sequence
from typing import Any

from config import queues
from config.schedule import LATE_S, parse_schedule
from config.settings import Settings


def celery_config(settings: Settings, consumed: Sequence[str] = ()) -> dict[str, Any]:
    """The configuration of every process; `consumed` are the queues of this one, if it is a worker."""
    broker = settings.broker_url
    names = list(consumed) or [queues.CPU]
    return {
        "broker_url": broker,
        "broker_connection_retry_on_startup": True,
        # The default gives up after 100 tries; a Redis that is down over night must find its workers waiting.
        "broker_connection_max_retries": None,
        # A try to connect is short: whoever asks for a queue's length is waiting.
        "broker_connection_timeout": 2,
        "broker_transport_options": _transport_options(settings) if not broker.startswith("amqp") else {},
        # Results live in the ledger and the cache; Celery's own result backend would be a second truth.
        "task_ignore_result": True,
        "result_backend": None,
        # Otherwise beat would clean that backend every night.
        "result_expires": None,
        # JSON only: a message can name work but never carry code.
        "accept_content": ["json"],
        "task_serializer": "json",
        # Acknowledged when it ended, delivered again when its process died; the ledger decides whether it runs.
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        # One message per free place: what a worker cannot start yet stays for the others.
        "worker_prefetch_multiplier": 1,
        # The default of 4 s kills a child that is still loading a model, for ever.
        "worker_proc_alive_timeout": 600,
        # True crashes celery 5.6.3 when Redis restarts under a running task.
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        # SIGQUIT: running chunks get this long, then they go back to the queue.
        "worker_soft_shutdown_timeout": settings.stop_grace_s,
        "worker_enable_soft_shutdown_on_idle": False,
        # Our logging is set up by config.logging in every process.
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        # Events, for Flower. Not `task-sent`: it would cost the web process a quarter of every submit (3.7 ms against
        # 2.8 ms for one item), and what waits is in the ledger.
        "worker_send_task_events": True,
        "task_send_sent_event": False,
        # Only declared queues exist: a wrong name is an error at once, not a queue that nobody reads.
        "task_create_missing_queues": False,
        "task_queues": [queues.declare(name, broker) for name in names],
        # Must be one of these; nothing is ever sent without naming its queue.
        "task_default_queue": names[0],
        "task_default_exchange": "",
        "task_default_routing_key": names[0],
        "task_default_priority": queues.message_priority("normal", broker),
        "timezone": "UTC",
        "beat_schedule": beat_schedule(settings),
        # Beat looks at its schedule at least this often; its heartbeat rides on a thread of its own.
        "beat_max_loop_interval": 5,
        # What was due while beat was away for longer than this is not run in the middle of the day.
        "beat_cron_starting_deadline": LATE_S,
    }


def _transport_options(settings: Settings) -> dict[str, Any]:
    return {
        # Above the longest chunk: kombu renews nothing, and a shorter one starts a running task again.
        "visibility_timeout": settings.visibility_timeout_s,
        # Messages of a dead worker are looked for every 5 s; the default is about 100 s.
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        # One list per priority, the first served first.
        "priority_steps": list(range(len(queues.PRIORITIES))),
        # Without a timeout, publishing to a frozen Redis blocks for ever.
        "socket_timeout": 15,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 10,
    }


def beat_schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    """What beat starts, and when."""
    priority = queues.message_priority("bulk", settings.broker_url)
    return {
        f"benchmark {each.name} {each.fields}": each.entry(queues.CPU, priority)
        for each in parse_schedule(settings.benchmarks)
    }
