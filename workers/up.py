"""`make up`: the whole system on this machine. Starts Redis if none is given, then every line of the Procfile.

Says where things are once each of them has answered. Ctrl-C stops all of it.
"""

import fcntl
import json
import logging
import os
import shlex
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from config.logging import configure_logging
from config.settings import Settings, SettingsError, load_settings
from tasks.app import create_celery
from tasks.connections import connect, redact, wait_for_redis
from tasks.errors import AssayError, Permanent
from tasks.probe import ask
from tasks.registry import Registry
from workers.embedded_redis import EmbeddedRedis, RedisServerMissing, free_port
from workers.supervision import EXIT_MISCONFIGURED, Command, Supervisor

log = logging.getLogger("workers.up")

#: Seconds between two looks at what is not ready yet, and between two lines that say what that is.
LOOK_S = 1.0
SAY_S = 30.0
#: Seconds a queue has to answer a probe.
PROBE_S = 20.0


def read_procfile(path: Path) -> list[Command]:
    """The Procfile's lines. Commands are split like a shell would, but run without one."""
    commands = []
    for line in path.read_text().splitlines():
        name, separator, command = line.partition(":")
        if separator and not line.startswith("#"):
            commands.append(Command(name.strip(), tuple(shlex.split(command))))
    return commands


def lock_folder(folder: Path) -> IO[str]:
    """Hold the data folder for as long as the returned file is open: two servers on one file would spoil it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Permanent(
            f"The folder {folder} is used by another `make up`: stop that one, or set ASSAY_DATA_DIR to another folder."
        ) from error
    return lock


def require_free_port(host: str, port: int, variable: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a server that just ended is free
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Permanent(
                f"Port {port} on {host} cannot be used ({error.strerror}): "
                f"stop what listens there, or choose another with {variable}=..."
            ) from error


class Readiness:
    """What has not answered yet."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._app = create_celery(settings)
        self._state = connect(settings.redis_url)
        self._registry = Registry(self._state, settings.heartbeat_ttl_s)
        self._answered: set[str] = set()

    def missing(self) -> list[str]:
        settings = self._settings
        waiting = []
        for name, url in (
            ("the API", f"http://{settings.host}:{settings.port}/ready"),
            ("Flower", f"http://{settings.flower_host}:{settings.flower_port}/healthcheck"),
        ):
            if problem := _http_problem(url):
                waiting.append(f"{name}: {problem}")
        workers = self._registry.workers()
        if not any(worker.pool == "beat" and worker.state == "ready" for worker in workers):
            waiting.append("beat: not there yet")
        for queue in sorted({queue for worker in workers for queue in worker.queues} - self._answered):
            if waiting or ask(self._app, self._state, queue, PROBE_S) is None:
                waiting.append(f"queue {queue}: no worker has answered yet")
            else:
                self._answered.add(queue)
        return waiting

    def queues(self) -> list[str]:
        return sorted(self._answered)


def _http_problem(url: str) -> str:
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
        return f"does not answer yet ({error})"


def announce_when_ready(settings: Settings, cache: str, folder: Path) -> Callable[[], None]:
    """A tick that prints where things are, once, when all have answered."""
    readiness = Readiness(settings)
    started = looked = said = time.monotonic()
    done = False

    def tick() -> None:
        nonlocal looked, said, done
        now = time.monotonic()
        if done or now - looked < LOOK_S:
            return
        looked = now
        try:
            missing = readiness.missing()
        except AssayError as error:
            missing = [str(error)]
        if not missing:
            done = True
            print(_welcome(settings, cache, folder, readiness.queues(), now - started), flush=True)
        elif now - said >= SAY_S:
            said = now
            log.warning("not ready after %.0f s: %s", now - started, "; ".join(missing))

    return tick


def _welcome(settings: Settings, cache: str, folder: Path, queues: list[str], seconds: float) -> str:
    api = f"http://{settings.host}:{settings.port}"
    return f"""
Assay is up ({seconds:.0f} s).

  API        {api}
  Dashboard  {api}/
  Flower     http://{settings.flower_host}:{settings.flower_port}/
  Queues     {", ".join(queues)}
  Redis      {redact(settings.redis_url)} (state), {redact(cache)} (cache); data in {folder}/

Try:  curl {api}/v1/workers

Ctrl-C stops everything.
"""


def up(settings: Settings, procfile: Path) -> int:
    lock = lock_folder(settings.data_dir)
    require_free_port(settings.host, settings.port, "ASSAY_PORT")
    require_free_port(settings.flower_host, settings.flower_port, "ASSAY_FLOWER_PORT")
    servers, processes = Supervisor(settings.stop_grace_s), Supervisor(settings.stop_grace_s + 5)
    processes.handle_signals()
    try:
        if "redis_url" not in settings.model_fields_set:
            settings = start_redis(settings, servers)
        if not wait_for_redis(settings.redis_url, processes.pause):
            return 0
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        for command in read_procfile(procfile):
            processes.start(command)
        announce = announce_when_ready(settings, settings.cache_url, settings.data_dir)

        def tick() -> None:
            servers.poll()
            announce()

        processes.run(tick)
        return max(processes.failed.values(), default=0)
    finally:
        processes.shutdown()
        servers.shutdown()  # last: what stops may still have something to write
        lock.close()


def start_redis(settings: Settings, servers: Supervisor) -> Settings:
    """Start the two servers and tell the processes of them."""
    for role in ("state", "cache"):
        server = EmbeddedRedis(role, settings.data_dir / f"redis-{role}", free_port(), settings.embedded_cache_mb)
        servers.start(server.command())
        os.environ["ASSAY_REDIS_URL" if role == "state" else "ASSAY_CACHE_URL"] = server.url
    return load_settings()


def main() -> int:
    try:
        settings = load_settings()
        configure_logging("up", settings.log_level)
        return up(settings, Path("Procfile"))
    except (SettingsError, AssayError, RedisServerMissing) as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED


if __name__ == "__main__":
    sys.exit(main())
