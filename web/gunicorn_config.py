"""gunicorn's configuration. Loaded before the application, so a wrong setting is reported here in a line of its own."""

import os
import sys
from typing import Any

sys.path.insert(0, os.getcwd())

from config.logging import logging_config
from config.settings import SettingsError, load_settings
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.tracing import close_tracer
from web.http.auth.tokens import Tokens
from web.rewards.named_rewards import usable_rewards

try:
    settings = load_settings()
    if settings.tokens_file:
        Tokens(settings.tokens_file)
    usable_rewards(settings, create_core(settings, create_celery(settings)).kinds)
except SettingsError as error:
    print(error, file=sys.stderr)
    sys.exit(78)

bind = f"[{settings.host}]:{settings.port}" if ":" in settings.host else f"{settings.host}:{settings.port}"
workers = settings.web_processes
threads = settings.web_threads
worker_class = "web.gunicorn_worker.Worker"
# A thread may wait for a job's result as long as its client does: gthread sends its heartbeat apart from requests.
timeout = 60
graceful_timeout = int(settings.stop_grace_s)
keepalive = 75
# Idle connections need no thread, and trainers keep many open.
worker_connections = threads + 1000
# With a JSONL body the rest of the request is in the query; a longer request must use a multipart body.
limit_request_line = 8190
logconfig_dict = logging_config("web", settings.log_level, settings.log_format)
# Format of an optional access log: without the query (r, q), the user (u) and the Referer (f), as they may hold a
# token.
access_log_format = '%(h)s %(t)s "%(m)s %(U)s %(H)s" %(s)s %(b)s %(M)s ms "%(a)s"'
# The heartbeat file is in memory: on a slow disk it blocks the worker.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None
control_socket_disable = True


def post_worker_init(worker: Any) -> None:
    """Connect waiting requests to gunicorn's stop flag: a stop must not wait for the last open stream or submit."""
    worker.wsgi.extensions["assay"].long_requests.is_serving = lambda: worker.alive
    worker.wsgi.extensions["assay"].request_metrics.start()


def worker_exit(_server: Any, worker: Any) -> None:
    if worker.booted:  # it has served requests: write its last counts to Redis
        worker.wsgi.extensions["assay"].request_metrics.stop()
        close_tracer(worker.wsgi.extensions["assay"].core.tracer)
