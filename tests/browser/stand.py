"""The processes behind the pages: web, workers and Redis."""

import json
import signal
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from config.settings import Settings
from tasks.connections import connect
from tasks.worker_registry import Registry
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program, Programs, wait_until
from tests.support.redis_server import RedisServer


class Stand:
    def __init__(self, programs: Programs, redis: RedisServer, folder: Path) -> None:
        self._programs, self.redis, self._folder = programs, redis, folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.web: Program | None = None
        self._launchers: list[Program] = []
        self._environment = {
            "ASSAY_REDIS_URL": redis.url, "ASSAY_NODE": "node1", "ASSAY_SLOTS": "cpu:2",
            "ASSAY_STORAGE_URL": (folder / "storage").as_uri(), "ASSAY_FLOWER_PORT": str(free_port()),
        }  # fmt: skip

    def start(self) -> None:
        self._launchers = [
            self._programs.start("python", "-m", "workers.launch", pool, **self._environment)
            for pool in ("device", "cpu", "api")
        ]
        self.start_web()
        registry = Registry(connect(self.redis.url), Settings(redis_url=self.redis.url).heartbeat_ttl_s)
        wait_until(lambda: sum(each.state == "ready" for each in registry.workers()) == 4, "all workers are ready")

    def stop(self) -> None:
        """Kill every process, as the end-to-end tests do."""
        for launcher in self._launchers:
            below = launcher.descendants()
            launcher.process.kill()
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def start_web(self) -> None:
        self.web = self.serve(self.port)

    def stop_web(self) -> None:
        assert self.web
        self.web.stop(signal.SIGTERM)

    def serve(self, port: int, **environment: str) -> Program:
        web = self._programs.start(
            "gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app",
            **self._environment | {"ASSAY_PORT": str(port)} | environment,
        )  # fmt: skip
        wait_until(lambda: _answers(port), "the web process answers")
        return web

    def submit(self, *items: dict[str, Any], **options: Any) -> str:
        return str(self.ask("POST", "/v1/jobs", {"kind": "simulated", "items": list(items)} | options)["id"])

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(self.url + path, data, headers, method=method), timeout=PATIENCE_S
        ) as it:
            told: dict[str, Any] = json.loads(it.read())
        return told


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE_S) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
