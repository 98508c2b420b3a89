"""`make up`: the whole system on this machine. Starts Redis if none is given, then every line of the Procfile.

Says where things are once each of them has answered. Ctrl-C stops all of it. With `--run` it is up for one command
(`workers/one_command.py`).
"""

import errno
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
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO

from config.logging import configure_logging
from config.settings import DEVELOPMENT_NOTE, Settings, SettingsError, load_settings
from tasks.app import create_celery
from tasks.connections import connect, explained, redact, wait_for_redis
from tasks.errors import AssayError, Permanent
from tasks.probe import read_probe, send_probe
from tasks.registry import Registry
from workers.devices import take_inventory
from workers.embedded_redis import EmbeddedRedis, RedisServerMissing, Role, free_port
from workers.policies.address import Address
from workers.policy_servers.servers import server_urls
from workers.supervision import EXIT_MISCONFIGURED, Command, Supervisor

log = logging.getLogger("workers.up")

#: Seconds between two looks at what is not ready yet, and between two lines that say what that is.
LOOK_S = 1.0
SAY_S = 30.0
#: The Procfile's lines that are left out when an API is configured, and when policy servers are given.
JUDGE = "judge"
POLICIES = "policies"


def read_procfile(path: Path) -> list[Command]:
    """The Procfile's lines. Commands are split like a shell would, but run without one."""
    commands = []
    for line in path.read_text().splitlines():
        name, separator, command = line.partition(":")
        if separator and not line.startswith("#"):
            argv = tuple(shlex.split(command))
            commands.append(Command(name.strip(), argv, stop_last=name.strip() in (JUDGE, POLICIES)))
    return commands


def lock_folder(folder: Path) -> IO[str]:
    """Hold the data folder for as long as the returned file is open: two servers on one file would spoil it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a+")
    except OSError as error:
        raise Permanent(
            f"The folder {folder} cannot be used ({error.strerror}): set ASSAY_DATA_DIR to one that can be written."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Permanent(
            f"The folder {folder} is used by another `make up`: stop that one, or set ASSAY_DATA_DIR to another folder."
        ) from error
    return lock


def require_free_port(host: str, port: int, variable: str) -> None:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port of a server that just ended is free
            probe.bind(address)
    except OSError as error:
        advice = f"stop what listens there, or choose another with {variable}=..."
        if error.errno != errno.EADDRINUSE:
            advice = f"correct {variable.replace('PORT', 'HOST')}."
        raise Permanent(f"Port {port} on {host} cannot be used ({error.strerror}): {advice}") from error


class Readiness:
    """What has not answered yet, of the processes of these names."""

    def __init__(self, settings: Settings, started: Collection[str], policies: Sequence[str] = ()) -> None:
        """`policies`: URLs of the policy servers that are waited for."""
        self._started = started
        self._settings = settings
        self._policies = policies
        self._app = create_celery(settings)
        self._state = connect(settings.redis_url)
        self._registry = Registry(self._state, settings.heartbeat_ttl_s)
        self._asked: dict[str, str] = {}
        self._answered: set[str] = set()

    def missing(self) -> list[str]:
        settings = self._settings
        waiting = []
        places = {"the API": f"http://{settings.host}:{settings.port}/ready"}
        if "flower" in self._started:
            places["Flower"] = f"http://{settings.flower_host}:{settings.flower_port}/healthcheck"
        if JUDGE in self._started:
            places["the development API"] = f"{settings.development_api_url}/models"
        places |= {f"the policy server {url}": f"{url.replace('ws', 'http', 1)}/healthz" for url in self._policies}
        for name, url in places.items():
            if problem := _http_problem(url):
                waiting.append(f"{name}: {problem}")
        with explained(settings.redis_url):
            workers = self._registry.workers()
            self._probe({queue for worker in workers for queue in worker.queues})
        if "beat" in self._started and not any(each.pool == "beat" and each.state == "ready" for each in workers):
            waiting.append("beat: not there yet")
        waiting += [
            f"queue {queue}: no worker has answered yet" for queue in self._asked if queue not in self._answered
        ]
        return waiting

    def _probe(self, queues: set[str]) -> None:
        """Ask every queue once, and note who has answered. Never waits: the caller has children to look after."""
        for queue in sorted(queues - self._asked.keys()):
            self._asked[queue] = send_probe(self._app, queue)
        for queue, token in self._asked.items():
            if queue not in self._answered and read_probe(self._state, token):
                self._answered.add(queue)

    def queues(self) -> list[str]:
        return sorted(self._answered)

    def close(self) -> None:
        self._app.close()
        self._state.close()


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


def announce_when_ready(
    settings: Settings, cache: str, folder: Path, processes: Collection[str], policies: Sequence[str]
) -> Callable[[], None]:
    """A tick that prints where things are, once, when all have answered."""
    # Others than the development policy may load their models for many minutes.
    readiness = Readiness(settings, processes, policies if settings.uses_development_policy else ())
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
            print(_welcome(settings, cache, folder, readiness.queues(), policies, now - started), flush=True)
        elif now - said >= SAY_S:
            said = now
            log.warning("not ready after %.0f s: %s", now - started, "; ".join(missing))

    return tick


#: A job to try: one right answer, one wrong.
_EXAMPLE = json.dumps(
    {
        "kind": "score",
        "spec": {"scorers": [{"name": "numeric_match"}]},
        "items": [{"response": "It is 2 + 3 = 5.", "reference": "5"}, {"response": "6", "reference": "5"}],
    }
)


def _welcome(
    settings: Settings, cache: str, folder: Path, queues: list[str], policies: Sequence[str], seconds: float
) -> str:
    api = f"http://{settings.host}:{settings.port}"
    judge = (
        f"{settings.development_api_url} ({DEVELOPMENT_NOTE}; ASSAY_PROFILES_FILE names another)"
        if settings.uses_development_api
        else f"the profiles in {settings.profiles_file}"
    )
    return f"""
Assay is up ({seconds:.0f} s).

  API        {api}
  Dashboard  {api}/
  Flower     http://{settings.flower_host}:{settings.flower_port}/
  Judge      {judge}
  Policies   {", ".join(policies)}{" (development: a script)" if settings.uses_development_policy else ""}
  Queues     {", ".join(queues)}
  Redis      {redact(settings.redis_url)} (state), {redact(cache)} (cache); data in {folder}/

Try:  curl '{api}/v1/jobs?wait=10' -H 'Content-Type: application/json' -d '{_EXAMPLE}'

In other terminals: . {folder}/env points commands at this system. Ctrl-C stops everything.
"""


def up(settings: Settings, procfile: Path) -> int:
    lock = lock_folder(settings.data_dir)
    require_free_port(settings.host, settings.port, "ASSAY_PORT")
    require_free_port(settings.flower_host, settings.flower_port, "ASSAY_FLOWER_PORT")
    if settings.uses_development_api:
        require_free_port("127.0.0.1", settings.development_api_port, "ASSAY_DEVELOPMENT_API_PORT")
    policies = server_urls(settings, len(take_inventory(settings, os.environ).slots))
    if not settings.policy_urls:
        for url in policies:
            require_free_port("127.0.0.1", Address(url).port, "ASSAY_POLICY_PORT")
    # Redis with a full disk refuses to end; launchers need time to kill theirs.
    servers, processes = Supervisor(stop_grace_s=10), Supervisor(settings.stop_grace_s + 5, kill_s=5)
    processes.handle_signals()
    try:
        settings = start_redis(settings, servers)
        if not wait_for_redis(settings.redis_url, lambda seconds: check_servers(servers) or processes.pause(seconds)):
            return 0
        write_environment(settings)
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        wanted = {JUDGE: settings.uses_development_api, POLICIES: not settings.policy_urls}
        for command in read_procfile(procfile):
            if wanted.get(command.name, True):
                processes.start(command)
        running = set(processes.children)
        announce = announce_when_ready(settings, settings.cache_url, settings.data_dir, running, policies)

        def tick() -> None:
            servers.poll()
            announce()

        processes.run(tick)
        return max(processes.failed.values(), default=0)
    finally:
        processes.shutdown()
        servers.shutdown()  # last: what stops may still have something to write
        lock.close()
        log.info("stopped")


def start_redis(settings: Settings, servers: Supervisor) -> Settings:
    """Start the servers that no setting names, and tell the processes of them."""
    if "redis_url" in settings.model_fields_set:
        return settings
    roles: list[Role] = ["state"] if "cache_url" in settings.model_fields_set else ["state", "cache"]
    for role in roles:
        server = EmbeddedRedis(role, settings.data_dir / f"redis-{role}", free_port(), settings.embedded_cache_mb)
        servers.start(server.command())
        os.environ["ASSAY_REDIS_URL" if role == "state" else "ASSAY_CACHE_URL"] = server.url
    return load_settings()


def check_servers(servers: Supervisor) -> bool:
    """Say why when a server of ours cannot start; always False."""
    servers.poll()
    for child in servers.children.values():
        if child.deaths >= 2:
            lines = Path(child.command.log_path).read_text(errors="replace").splitlines()
            raise Permanent(f"{child.command.name} cannot start; {child.command.log_path} ends with: {lines[-1]}")
    return False


def write_environment(settings: Settings) -> None:
    """For other terminals: `. data/env` points commands at this system."""
    names = {"ASSAY_REDIS_URL": settings.redis_url, "ASSAY_CACHE_URL": settings.cache_url}
    path = settings.data_dir / "env"
    path.touch(mode=0o600)
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in names.items()))


def main() -> int:
    if sys.argv[1:2] == ["--run"]:
        from workers import one_command  # which uses what is here

        return one_command.main(sys.argv[2:])
    try:
        settings = load_settings()
        configure_logging("up", settings.log_level, form=settings.log_format)
        return up(settings, Path("Procfile"))
    except (SettingsError, AssayError, RedisServerMissing) as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    except KeyboardInterrupt:  # before the handlers were there
        return 0


if __name__ == "__main__":
    sys.exit(main())
