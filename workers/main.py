"""Entry point of one Celery worker process, or of beat. `workers.launch` starts it, with its devices already pinned.

`python -m workers.main POOL --index N --launcher ID`; users run `python -m workers.launch` instead.
"""

import argparse
import logging
import multiprocessing
import os
import platform
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any
from uuid import uuid4

import billiard.pool
import psutil
from celery import signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from celery.worker import state as worker_state

from config.logging import configure_logging
from config.pools import POOLS, WORKER_POOLS, WorkerPool
from config.profiles import Profiles, load_profiles, read_key
from config.queues import Slot, queue_for, queues_of
from config.settings import Settings, SettingsError, load_settings
from tasks.app import AssayCelery, create_celery
from tasks.composition import create_core
from tasks.connections import connect, wait_for_redis
from tasks.errors import Permanent, WorkerNameTaken
from tasks.jobs.core import JobCore
from tasks.tracing import create_tracer
from tasks.worker_registry import Registry, Worker
from workers.processes.signal_event import SignalEvent
from workers.processes.supervisor import EXIT_CHILD_DIED, EXIT_MISCONFIGURED, EXIT_NAME_TAKEN
from workers.worker.consumer import Consumer
from workers.worker.heartbeat import Heartbeat
from workers.worker.runtime import ProcessRuntime
from workers.worker.telemetry import Telemetry
from workers.worker.watchdog import Watchdog

log = logging.getLogger("workers.main")

#: Niceness of API workers: on a busy host they yield the CPU to device workers. A call waits for its API anyway, but a
#: device must not wait for API workers.
API_NICENESS = 5
#: Distributions whose versions a worker reports.
_REPORTED = ("celery", "redis", "torch", "transformers")


def worker_name(pool: WorkerPool, node: str, index: int) -> str:
    """Return a name that is unique among live workers. A device worker has the name of its queue."""
    return queue_for(Slot(node, index)) if POOLS[pool].queues == "per_slot" else f"{pool}.{node}.{index}"


def describe(settings: Settings, pool: WorkerPool, index: int, launcher: str) -> Worker:
    """Return the registry record of this process."""
    slot = Slot(settings.node, index) if POOLS[pool].queues == "per_slot" else None
    return Worker(
        name=worker_name(pool, settings.node, index),
        pool=pool,
        node=settings.node,
        host=socket.gethostname(),
        pid=os.getpid(),
        incarnation=uuid4().hex,
        launcher=launcher,
        queues=queues_of(pool, slot),
        concurrency=POOLS[pool].concurrency(settings),
        slot=slot.index if slot else None,
        devices=tuple(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))) if slot else (),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _REPORTED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def reserved() -> list[str]:
    """Return the names of the tasks in flight: the message has left the queue and the task has not ended, in any
    state of the child."""
    while True:
        with suppress(RuntimeError):  # the consumer's thread changed the set during the iteration
            return [request.name for request in list(worker_state.reserved_requests)]


def run_worker(app: AssayCelery, worker: Worker, heartbeat: Heartbeat, core: JobCore) -> int:
    """Run Celery's worker until it is told to stop."""
    signals.worker_shutting_down.connect(lambda **_: heartbeat.say("stopping"), weak=False)
    celery_worker = app.Worker(
        hostname=f"{worker.name}@{worker.node}",
        pool_cls=POOLS[worker.pool].celery_pool,
        concurrency=worker.concurrency,
        consumer_cls=Consumer,
        loglevel=core.settings.log_level,
        quiet=True,
        # Workers find each other in the registry; Celery's mingle and gossip cost a second at start and messages later.
        without_mingle=True,
        without_gossip=True,
    )
    recovery = core.recovery()

    def restart(dead: str) -> None:
        try:
            heartbeat.leave()  # first, so that the dead child's chunks do not return to this queue
            # Celery may have replaced the dead child already. The replacement's chunks are released without a penalty.
            for child in psutil.Process().children():
                child.kill()
                child.wait(5)
            if dead:
                recovery.bury(dead)
            recovery.release(f"{worker.name}/{worker.incarnation}")
        finally:
            os._exit(EXIT_CHILD_DIED)  # no orderly shutdown is needed: the chunks are back in the ledger

    # A child that ends waits, 30 s by default, until its parent has read its last result, but the parent may have
    # stopped reading. Assay keeps no data in this result: outcomes are in the ledger.
    billiard.pool.GUARANTEE_MESSAGE_CONSUMPTION_RETRY_LIMIT = 10  # of 0.1 s

    # Celery's pool maps a temporary file that is unlinked once it is open. The folder created for this file would be
    # removed by an orderly exit only, so every worker that is killed, or restarts itself, would leave it behind.
    multiprocessing.current_process()._config["tempdir"] = tempfile.gettempdir()  # type: ignore[attr-defined]

    watch = Watchdog(
        recovery,
        core.ledger,
        core.settings.redis_url,
        worker,
        reserved,
        restart,
    )

    def on_ready(**_: object) -> None:
        heartbeat.say("ready")
        watch.start()

    signals.worker_ready.connect(on_ready, weak=False)
    celery_worker.start()
    watch.stop()
    return celery_worker.exitcode or 0


def run_beat(app: AssayCelery, settings: Settings, heartbeat: Heartbeat) -> int:
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    heartbeat.say("ready")
    app.Beat(schedule=str(settings.data_dir / "beat-schedule"), loglevel=settings.log_level, quiet=True).run()
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.main", description=__doc__)
    parser.add_argument("pool", choices=WORKER_POOLS)
    parser.add_argument("--index", type=int, default=0, help="slot of a device worker; index of any other worker")
    parser.add_argument("--launcher", default="", help="id of the launcher that started this process")
    parser.add_argument("--policy", action="append", default=[], metavar="URL", help="a policy server of this slot")
    arguments = parser.parse_args(argv)
    try:
        settings = load_settings()
        profiles = load_profiles(settings)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    worker = describe(settings, arguments.pool, arguments.index, arguments.launcher or uuid4().hex)
    configure_logging(worker.name, settings.log_level, form=settings.log_format)
    # Celery warns if run as root, because pickled messages could carry code; Assay's messages are JSON.
    warnings.simplefilter("ignore", SecurityWarning)
    # Celery announces, at every lost connection, the future default of an option that Assay sets explicitly.
    warnings.simplefilter("ignore", CPendingDeprecationWarning)
    # A receiver of this signal keeps Celery from configuring its own logging.
    signals.setup_logging.connect(lambda **_: None, weak=False)

    registry = Registry(connect(settings.redis_url), settings.heartbeat_ttl_s)
    telemetry = Telemetry(worker, settings.heartbeat_s)
    heartbeat = Heartbeat(
        registry,
        worker,
        settings.redis_url,
        settings.heartbeat_s,
        settings.stop_grace_s,
        lambda: len(reserved()),
        telemetry.upon,
    )
    try:
        if not _wait_for_redis(settings):
            return 0
        heartbeat.register()
    except WorkerNameTaken as error:
        log.error("%s", error)
        return EXIT_NAME_TAKEN
    except Permanent as error:
        log.error("%s", error)
        return EXIT_MISCONFIGURED
    if worker.pool == "api":
        warn_of_missing_keys(profiles)
    log.info("%s sees devices %s", worker.name, ",".join(worker.devices) or "none (CPU)")

    app = create_celery(settings, worker.queues)
    core = create_core(settings, app, tracer=create_tracer(settings, worker.pool))
    runtime = app.runtime = ProcessRuntime(worker, core, profiles, arguments.policy)
    if worker.pool == "api":
        os.nice(API_NICENESS)
        runtime.prepare()
    signals.worker_process_init.connect(lambda **_: runtime.prepare(), weak=False)  # sent in prefork children
    signals.worker_process_shutdown.connect(lambda **_: runtime.close(), weak=False)
    telemetry.busy.connect()
    if worker.pool == "beat":
        telemetry.start()
    signals.worker_ready.connect(lambda **_: telemetry.start(), weak=False)
    heartbeat.start()
    try:
        return run_beat(app, settings, heartbeat) if worker.pool == "beat" else run_worker(app, worker, heartbeat, core)
    finally:
        telemetry.stop()
        heartbeat.leave()
        runtime.close()  # a prefork parent has nothing to close; the system closes its child's resources


def warn_of_missing_keys(profiles: Profiles) -> None:
    """Log a warning per profile without a key, once at start; calls of the profile fail with the same reason."""
    for profile in profiles:
        try:
            read_key(profile, os.environ)
        except SettingsError as error:
            log.warning("%s; its calls will fail on this host", error)


def _wait_for_redis(settings: Settings) -> bool:
    """Wait until Redis answers. Return False if a stop signal arrives first."""
    stop = SignalEvent()
    before: dict[int, Any] = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        answers = wait_for_redis(settings.redis_url, stop.wait)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return answers and not stop.wait(0)  # the signal may arrive during the last, successful check


if __name__ == "__main__":
    sys.exit(main())
