"""gunicorn's configuration. Loaded before the application, so a wrong setting ends here with its own line."""

import os
import sys
from typing import Any

sys.path.insert(0, os.getcwd())

from config.logging import logging_config
from config.settings import SettingsError, load_settings
from tasks.app import create_celery
from tasks.jobs.core import create_core
from web.rewards import usable_rewards
from web.tokens import Tokens

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
# A thread waits for a job's result for as long as its client does; gthread's own heartbeat is not tied to requests.
timeout = 60
graceful_timeout = int(settings.stop_grace_s)
keepalive = 75
# Idle connections cost no thread; trainers keep many open.
worker_connections = threads + 1000
# The request around a JSONL body is in the query. A longer one belongs into a multipart body.
limit_request_line = 8190
logconfig_dict = logging_config("web", settings.log_level, settings.log_format)
# Where an access log is asked for: without the query (r, q), the user (u) and the Referer (f), which may hold a token.
access_log_format = '%(h)s %(t)s "%(m)s %(U)s %(H)s" %(s)s %(b)s %(M)s ms "%(a)s"'
# In memory: a heartbeat file on a slow disk blocks the worker.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None
control_socket_disable = True


def post_worker_init(worker: Any) -> None:
    """Open streams and waiting submits ask whether this process goes on: a stop must not wait for the last of them."""
    worker.wsgi.extensions["assay"].seats.is_serving = lambda: worker.alive
    worker.wsgi.extensions["assay"].traffic.start()


def worker_exit(_server: Any, worker: Any) -> None:
    if worker.booted:  # it served: what it counted last is not lost
        worker.wsgi.extensions["assay"].traffic.stop()
        worker.wsgi.extensions["assay"].core.tracer.close()
