"""Supervision of the policy servers that this host starts: one per device slot, by the supervisor of every process.

A server that dies is restarted with backoff; a server that is wedged is killed first. Their output is in
`logs/pi0_gpu<n>.log` of the data folder.
"""

import logging
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from config.settings import Settings
from workers.devices.discovery import PinnedSlot
from workers.policies.address import Address
from workers.policies.servers.addresses import server_urls
from workers.policies.servers.health import Probe, is_wedged
from workers.processes.supervisor import Command, Supervisor

log = logging.getLogger(__name__)

#: Command used unless the settings name a command.
DEVELOPMENT = "{python} -m workers.development_policy --port {port}"


def server_command(settings: Settings, pinned: PinnedSlot, port: int) -> Command:
    """Return the settings' command for one slot: run without a shell, pinned to the slot's devices before it starts."""
    fillings = {"{port}": str(port), "{device}": ",".join(pinned.devices), "{python}": sys.executable}
    words = shlex.split(settings.policy_command or DEVELOPMENT)
    for name, value in fillings.items():  # not str.format: JSON in a command has its own braces
        words = [word.replace(name, value) for word in words]
    return Command(
        f"policy.{settings.node}.{pinned.slot.index}",
        tuple(words),
        pinned.environment() | {"PYTHONUNBUFFERED": "1"},
        log_path=str(log_folder(settings) / f"pi0_gpu{pinned.slot.index}.log"),
    )


def log_folder(settings: Settings) -> Path:
    return settings.data_dir / "logs"


def keep_policy_servers(settings: Settings, slots: Sequence[PinnedSlot], supervisor: Supervisor) -> None:
    """Start one server per slot and supervise the servers until a stop signal; external servers are only watched."""
    if settings.policy_urls:
        _watch_given(settings, supervisor)
        return
    log_folder(settings).mkdir(parents=True, exist_ok=True)
    addresses = [Address(url) for url in server_urls(settings, len(slots))]
    commands = [
        server_command(settings, pinned, address.port) for pinned, address in zip(slots, addresses, strict=True)
    ]
    for command in commands:
        log.info("%s writes to %s", command.name, command.log_path)
        supervisor.start(command)
    probes = {
        command.name: Probe(address, settings.policy_silent_s)
        for command, address in zip(commands, addresses, strict=True)
    }

    announced: dict[str, float] = {}

    def check() -> None:
        for name, child in supervisor.children.items():
            started_at, answered_at = child.started_at, probes[name].answered_at
            if answered_at > started_at and announced.get(name) != started_at:
                announced[name] = started_at
                log.info("%s answers, %.0f s after its start", name, answered_at - started_at)
            limits = (settings.policy_start_s, settings.policy_silent_s)
            if child.process and is_wedged(time.monotonic(), started_at, answered_at, *limits):
                log.error("%s has not answered for too long: it is killed and started again", name)
                supervisor.kill(name)

    try:
        supervisor.run(check)
    finally:
        for probe in probes.values():
            probe.stop()


def _watch_given(settings: Settings, supervisor: Supervisor) -> None:
    """Log when an external server starts or stops answering. Runs on although it supervises no process: the runner of a
    Procfile ends with any of its processes."""
    log.info("policy servers are external (%s): no server is started here", settings.policy_urls)
    addresses = [Address(url) for url in server_urls(settings, 0)]
    probes = {address.url: Probe(address, settings.policy_silent_s) for address in addresses}
    answering: dict[str, bool] = {}
    began = time.monotonic()

    def check() -> None:
        for url, probe in probes.items():
            is_there = time.monotonic() - probe.answered_at <= settings.policy_silent_s
            is_known = is_there or time.monotonic() - began > settings.policy_silent_s
            if is_known and is_there != answering.get(url):
                level = logging.INFO if is_there else logging.WARNING
                log.log(level, "policy server %s %s", url, "answers" if is_there else "does not answer")
                answering[url] = is_there

    supervisor.run(check)
