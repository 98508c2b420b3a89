"""gunicorn's configuration. Loaded before the application, so a wrong setting ends here with its own line."""

import os
import sys

sys.path.insert(0, os.getcwd())

from config.logging import logging_config
from config.settings import SettingsError, load_settings

try:
    settings = load_settings()
except SettingsError as error:
    print(error, file=sys.stderr)
    sys.exit(78)

bind = f"[{settings.host}]:{settings.port}" if ":" in settings.host else f"{settings.host}:{settings.port}"
workers = settings.web_processes
threads = settings.web_threads
worker_class = "gthread"
# A thread waits for a job's result for as long as its client does; gthread's own heartbeat is not tied to requests.
timeout = 60
graceful_timeout = int(settings.stop_grace_s)
keepalive = 75
logconfig_dict = logging_config("web", settings.log_level)
# In memory: a heartbeat file on a slow disk blocks the worker.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None
control_socket_disable = True
