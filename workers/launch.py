"""Launcher of one pool's processes on this host: starts, supervises and restarts them.

python -m workers.launch device            one worker per device slot, each pinned to its devices
python -m workers.launch device --slot 3   only slot 3
python -m workers.launch api | cpu         workers scaled by queued work, within the settings' bounds
python -m workers.launch benchmark         one worker, while a benchmark runs
python -m workers.launch beat | flower     one process
python -m workers.launch policies          one policy server per device slot, each pinned like its worker
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

from config.logging import configure_logging
from config.pools import POOLS, QUEUED_POOLS, WORKER_POOLS, WorkerPool
from config.schedule import parse_schedule
from config.settings import Settings, SettingsError, load_settings
from tasks.app import create_celery
from tasks.composition import create_core
from tasks.connections import eviction_warning, translate_redis_errors, wait_for_redis
from tasks.errors import AssayError, Permanent, Retryable
from workers.devices.discovery import PinnedSlot, take_inventory
from workers.main import worker_name
from workers.policies.servers.addresses import server_urls, servers_of_slot
from workers.policies.servers.supervision import keep_policy_servers
from workers.processes.flower import AUTH_FILE, flower_environment
from workers.processes.scaling import Bounds, Scaler, Start, Stop
from workers.processes.supervisor import EXIT_MISCONFIGURED, EXIT_NAME_TAKEN, Command, Supervisor

log = logging.getLogger("workers.launch")

#: Names that this program launches: the pools with workers, and two programs that are not worker pools.
LAUNCHED = (*WORKER_POOLS, "flower", "policies")
#: Seconds between two checks of the queue that decide the number of workers.
SCALE_INTERVAL_S = 1.0


class Launcher:
    def __init__(self, settings: Settings, supervisor: Supervisor) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._id = uuid4().hex
        self._core = create_core(settings, create_celery(settings))
        self._registry = self._core.registry
        self._recovery = self._core.recovery()
        supervisor.on_death = self._recover

    def launch_devices(self, only: Sequence[int]) -> None:
        inventory = take_inventory(self._settings, os.environ)
        log.info("node %s: %s", self._settings.node, inventory.sentence)
        if inventory.warning:
            log.warning(inventory.warning)
        known = {pinned.slot.index: pinned for pinned in inventory.slots}
        if missing := [index for index in only if index not in known]:
            raise Permanent(
                f"Slot {missing[0]} does not exist: node {self._settings.node} has slots 0 to {len(known) - 1}. "
                "ASSAY_SLOTS sets their number."
            )
        chosen = [known[index] for index in sorted(set(only))] if only else list(inventory.slots)
        if free := [pinned for pinned in chosen if self._is_free("device", pinned.slot.index)]:
            urls = server_urls(self._settings, len(known))
            for pinned in free:
                own = servers_of_slot(urls, pinned.slot.index, len(known))
                self._supervisor.start(self._device_command(pinned, own))
            self._supervisor.run()

    def launch_scaled(self, pool: WorkerPool) -> None:
        workers = POOLS[pool].workers
        assert workers, "only a shared queue is scaled"
        bounds = Bounds(*workers(self._settings), self._settings.scale_down_idle_s)
        if not self._is_free(pool, 0):
            return
        scaler, app = Scaler(bounds), create_celery(self._settings)
        looked_at = 0.0

        def tick() -> None:
            nonlocal looked_at
            if time.monotonic() - looked_at < SCALE_INTERVAL_S:
                return
            looked_at = time.monotonic()
            if self._supervisor.failed or any(child.stopping for child in self._supervisor.children.values()):
                return  # a stopping worker still occupies its name
            try:
                queued = app.queued(pool)  # a shared queue is named like its pool
                with translate_redis_errors(self._settings.redis_url):
                    # No chunk is dispatched to a queue without workers: its waiting chunks are in the ledger only.
                    queued += self._core.ledger.ready(pool)
                    running = {index: self._registry.get(name) for index, name in self._indices(pool).items()}
            except Retryable as error:  # the workers log the Redis outage themselves; scaling is retried
                log.debug("not scaling: %s", error)
                return
            match scaler.decide(queued, running, looked_at):
                case Start(index):
                    if queued:
                        log.info("work waits for %s: starting worker %d", pool, index)
                    self._supervisor.start(self._command(pool, index))
                case Stop(index):
                    log.info("worker %d of %s is idle: stopping it", index, pool)
                    self._supervisor.stop(worker_name(pool, self._settings.node, index))

        for index in range(bounds.least):
            self._supervisor.start(self._command(pool, index))
        self._supervisor.run(tick)

    def launch_beat(self) -> None:
        from tasks.deployment_benchmarks.catalogue import find  # imports every scenario; other launchers skip it

        for scheduled in parse_schedule(self._settings.benchmarks):
            find(scheduled.name)
        if not self._is_free("beat", 0):
            return
        self._supervisor.start(self._command("beat", 0))
        self._supervisor.run()

    def launch_flower(self) -> None:
        environment = flower_environment(self._settings)
        if "FLOWER_BASIC_AUTH" in environment and not self._settings.flower_basic_auth:
            log.info("Flower asks for the user and password in %s", self._settings.data_dir / AUTH_FILE)
        argv = (sys.executable, "-m", "workers.processes.flower")
        self._supervisor.start(Command("flower", argv, environment))
        self._supervisor.run()

    def _recover(self, name: str) -> None:
        """Return the chunks of a dead worker to the pending list at once: this launcher saw its process end."""
        try:
            with translate_redis_errors(self._settings.redis_url):
                self._recovery.bury_worker(name)
        except AssayError as error:  # its heartbeat expires, and other processes recover its chunks
            log.warning("cannot recover the chunks of dead worker %s: %s", name, error)

    def _indices(self, pool: WorkerPool) -> dict[int, str]:
        """Return the names of this pool's running and starting workers, by index; stopping workers are left out."""
        prefix = worker_name(pool, self._settings.node, 0).removesuffix("0")
        return {
            int(name.removeprefix(prefix)): name
            for name, child in self._supervisor.children.items()
            if not child.stopping
        }

    def _is_free(self, pool: WorkerPool, index: int) -> bool:
        """Check whether this worker may be started here; log an error if a different launcher already runs it.

        A worker that was killed just now may have left its record: wait until the record's TTL has passed.
        """
        name = worker_name(pool, self._settings.node, index)
        deadline, said = time.monotonic() + self._settings.heartbeat_ttl_s + 1, False
        while True:
            with translate_redis_errors(self._settings.redis_url):
                holder = self._registry.get(name)
            if holder is None:
                return True
            if not said:
                log.warning(
                    "%s is registered by pid %d on %s; checking whether it is alive", name, holder.pid, holder.host
                )
                said = True
            if holder.state == "stopping":  # its launcher died: wait until it ends, within its grace period
                deadline = max(deadline, time.monotonic() + self._settings.heartbeat_ttl_s)
            if time.monotonic() > deadline or self._supervisor.pause(0.25):
                log.error(
                    "%s runs already (pid %d on %s): not started again. "
                    "If the other worker is on a different host, set a different ASSAY_NODE on this host.",
                    name,
                    holder.pid,
                    holder.host,
                )
                self._supervisor.failed[name] = EXIT_NAME_TAKEN
                return False

    def _device_command(self, pinned: PinnedSlot, policies: Sequence[str]) -> Command:
        return self._command("device", pinned.slot.index, pinned.environment(), policies)

    def _command(
        self, pool: WorkerPool, index: int, environment: dict[str, str] | None = None, policies: Sequence[str] = ()
    ) -> Command:
        own = (part for url in policies for part in ("--policy", url))
        argv = (sys.executable, "-m", "workers.main", pool, "--index", str(index), "--launcher", self._id, *own)
        return Command(worker_name(pool, self._settings.node, index), argv, environment or {})


def run(settings: Settings, pool: str, slots: Sequence[int], supervisor: Supervisor) -> int:
    supervisor.handle_signals(pass_on=[signal.SIGUSR1] if pool in QUEUED_POOLS else [])
    if pool == "policies":  # policy servers do not use Redis
        keep_policy_servers(settings, take_inventory(settings, os.environ).slots, supervisor)
        return max(supervisor.failed.values(), default=0)
    for url in dict.fromkeys((settings.redis_url, settings.broker_url)):
        if url.startswith("redis") and not wait_for_redis(url, supervisor.pause):
            return 0
    if warning := eviction_warning(settings.redis_url):
        log.warning(warning)
    launcher = Launcher(settings, supervisor)
    launch: dict[str, Callable[[], None]] = {
        "device": lambda: launcher.launch_devices(slots),
        "api": lambda: launcher.launch_scaled("api"),
        "cpu": lambda: launcher.launch_scaled("cpu"),
        "benchmark": lambda: launcher.launch_scaled("benchmark"),
        "beat": launcher.launch_beat,
        "flower": launcher.launch_flower,
    }
    launch[pool]()
    return max(supervisor.failed.values(), default=0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m workers.launch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pool", choices=LAUNCHED)
    parser.add_argument("--slot", type=int, action="append", default=[], help="device slot to run; may be repeated")
    arguments = parser.parse_args(argv)
    if arguments.slot and arguments.pool != "device":
        parser.error(f"--slot is valid for the device pool only, not for {arguments.pool}")
    try:
        settings = load_settings()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_MISCONFIGURED
    configure_logging(f"{arguments.pool}-launcher", settings.log_level, form=settings.log_format)
    try:
        return run(settings, arguments.pool, arguments.slot, Supervisor(settings.stop_grace_s))
    except AssayError as error:
        log.error("%s", error)
        return EXIT_MISCONFIGURED
    except KeyboardInterrupt:  # before the signal handlers were installed
        return 0


if __name__ == "__main__":
    sys.exit(main())
