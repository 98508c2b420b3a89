"""Readiness of a system: every process has answered, and every queue's worker has run a probe task."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Sequence

from config.settings import Settings
from tasks.app import create_celery
from tasks.connections import connect, translate_redis_errors
from tasks.errors import AssayError
from tasks.probe import is_answered, send_probe
from tasks.worker_registry import Registry, Worker
from workers.system.procfile import JUDGE

#: Seconds between two checks.
CHECK_INTERVAL_S = 1.0


class Readiness:
    """Checks a system that is starting, without ever blocking on it for long: the caller supervises the processes."""

    def __init__(self, settings: Settings, started: Collection[str], slots: int, policy_servers: int) -> None:
        """`started`: Procfile names of the running processes. `slots`, `policy_servers`: numbers to wait for."""
        self._started = started
        self._settings = settings
        self._slots = slots
        self._policy_servers = policy_servers
        self._app = create_celery(settings)
        self._state = connect(settings.redis_url)
        self._registry = Registry(self._state, settings.heartbeat_ttl_s)
        self._probes: dict[str, str] = {}
        self._answered: set[str] = set()
        self._checked_at = 0.0
        self.missing: list[str] = ["no check yet"]
        """The parts that had not answered at the last check, each with the reason."""

    def check(self) -> bool:
        """Return whether every part has answered. Asks at most once a second."""
        now = time.monotonic()
        if now - self._checked_at >= CHECK_INTERVAL_S:
            self._checked_at = now
            try:
                self.missing = self._missing()
            except AssayError as error:
                self.missing = [str(error)]
        return not self.missing

    def queues(self) -> list[str]:
        """Return the queues whose workers have answered."""
        return sorted(self._answered)

    def close(self) -> None:
        """Close the connections to Redis."""
        self._app.close()
        self._state.close()

    def _missing(self) -> list[str]:
        settings = self._settings
        urls = {"the API": f"http://{settings.host}:{settings.port}/ready"}
        if "flower" in self._started:
            urls["Flower"] = f"http://{settings.flower_host}:{settings.flower_port}/healthcheck"
        if JUDGE in self._started:
            urls["the development API"] = f"{settings.development_api_url}/models"
        missing = [f"{name}: {problem}" for name, url in urls.items() if (problem := _http_problem(url))]
        with translate_redis_errors(settings.redis_url):
            workers = self._registry.workers()
            self._probe({queue for worker in workers for queue in worker.queues})
        if "beat" in self._started and not any(each.pool == "beat" and each.state == "ready" for each in workers):
            missing.append("beat: not ready")
        own = [each for each in workers if each.node == settings.node]
        missing += missing_slots(own, self._slots, self._policy_servers)
        missing += [f"queue {queue}: no answer from its worker" for queue in self._probes.keys() - self._answered]
        return missing

    def _probe(self, queues: set[str]) -> None:
        """Send each queue one probe task, and note the queues with an answered probe."""
        for queue in sorted(queues - self._probes.keys()):
            self._probes[queue] = send_probe(self._app, queue)
        for queue, token in self._probes.items():
            if queue not in self._answered and is_answered(self._state, token):
                self._answered.add(queue)


def missing_slots(workers: Sequence[Worker], slots: int, policy_servers: int) -> list[str]:
    """Return a message for each shortage: ready device workers, and those connected to a policy server."""
    ready = [each for each in workers if each.pool == "device" and each.state == "ready"]
    connected = sum(any(server.connected for server in each.policies) for each in ready)
    counts = {"device slots": (len(ready), slots), "policy servers": (connected, policy_servers)}
    return [f"{name}: {present} of {wanted}" for name, (present, wanted) in counts.items() if present < wanted]


def _http_problem(url: str) -> str:
    """Return why this URL does not answer with status 200, or an empty string if it does."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return "" if reply.status == 200 else f"answers {reply.status}"
    except urllib.error.HTTPError as error:
        body = error.read()
        try:
            return ", ".join(json.loads(body)["missing"])
        except (ValueError, KeyError, TypeError):
            return f"answers {error.code}"
    except OSError as error:
        return f"no answer yet ({error})"
