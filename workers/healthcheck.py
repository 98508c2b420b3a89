"""Health check for containers: `python -m workers.healthcheck POOL` exits with 0 if this host has a live worker."""

import argparse
import os
import sys
import urllib.request
from collections.abc import Sequence

from config.settings import Settings, SettingsError, load_settings
from tasks.connections import connect, translate_redis_errors
from tasks.errors import AssayError
from tasks.worker_registry import Registry
from workers.launch import LAUNCHED
from workers.policies.servers.health import listen


def is_healthy(settings: Settings, pool: str) -> bool:
    if pool == "flower":
        host = "127.0.0.1" if settings.flower_host == "0.0.0.0" else settings.flower_host
        with urllib.request.urlopen(f"http://{host}:{settings.flower_port}/healthcheck", timeout=5) as reply:
            return bool(reply.status == 200)
    if pool == "policies":
        return listen(settings, os.environ)
    with translate_redis_errors(settings.redis_url):
        if pool == "benchmark":  # its worker runs only during a benchmark
            return bool(connect(settings.redis_url).ping())
        workers = Registry(connect(settings.redis_url), settings.heartbeat_ttl_s).workers()
    return any(worker.pool == pool and worker.node == settings.node and worker.state == "ready" for worker in workers)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.healthcheck", description=__doc__)
    parser.add_argument("pool", choices=LAUNCHED)
    pool = parser.parse_args(argv).pool
    try:
        return 0 if is_healthy(load_settings(), pool) else 1
    except (SettingsError, AssayError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
