"""`make up`: run the system in the foreground until Ctrl-C, and print its addresses once every part answers."""

import json
import logging
import shlex
import time
from pathlib import Path

from config.settings import DEVELOPMENT_NOTE, Settings
from tasks.connections import redact
from workers.policies.servers.addresses import server_urls
from workers.system.system import System

log = logging.getLogger(__name__)

#: Seconds between two log lines that list the parts that are not ready.
REPORT_INTERVAL_S = 30.0


def run_until_stopped(settings: Settings, procfile: Path) -> int:
    """Run the system until a signal stops it. Return the highest exit code of a process that ended for good."""
    with System(settings, procfile) as system:
        if system.start():
            _watch(system)
    log.info("stopped")
    return max(system.failed.values(), default=0)


def _watch(system: System) -> None:
    """Watch the processes until a signal stops the system or no process is left."""
    began = reported = time.monotonic()
    write_environment(system.settings)
    readiness = system.readiness()
    is_announced = False
    while system.is_running and system.watch():
        now = time.monotonic()
        if is_announced:
            continue
        if readiness.check():
            is_announced = True
            print(_welcome(system, readiness.queues(), now - began), flush=True)
        elif now - reported >= REPORT_INTERVAL_S:
            reported = now
            log.warning("not ready after %.0f s: %s", now - began, "; ".join(readiness.missing))
    readiness.close()


#: A job to try: one response is right, the other is wrong.
_EXAMPLE = json.dumps(
    {
        "kind": "score",
        "spec": {"scorers": [{"name": "numeric_match"}]},
        "items": [{"response": "It is 2 + 3 = 5.", "reference": "5"}, {"response": "6", "reference": "5"}],
    }
)


def _welcome(system: System, queues: list[str], seconds: float) -> str:
    settings = system.settings
    folder = settings.data_dir
    api = f"http://{settings.host}:{settings.port}"
    judge = (
        f"{settings.development_api_url} ({DEVELOPMENT_NOTE}; set ASSAY_PROFILES_FILE to use another API)"
        if settings.uses_development_api
        else f"the profiles in {settings.profiles_file}"
    )
    policies = ", ".join(server_urls(settings, system.slots))
    return f"""
Assay is up ({seconds:.0f} s).

  API        {api}
  Dashboard  {api}/
  Flower     http://{settings.flower_host}:{settings.flower_port}/
  Judge      {judge}
  Policies   {policies}{" (development: a script)" if settings.uses_development_policy else ""}
  Queues     {", ".join(queues)}
  Redis      {redact(settings.redis_url)} (state), {redact(settings.cache_url)} (cache); data in {folder}/

Try:  curl '{api}/v1/jobs?wait=10' -H 'Content-Type: application/json' -d '{_EXAMPLE}'

In other terminals, `. {folder}/env` points commands at this system. Ctrl-C stops everything.
"""


def write_environment(settings: Settings) -> None:
    """Write data/env: a shell that sources it runs commands against this system."""
    names = {"ASSAY_REDIS_URL": settings.redis_url, "ASSAY_CACHE_URL": settings.cache_url}
    path = settings.data_dir / "env"
    path.touch(mode=0o600)
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in names.items()))
