"""Fault injector: kills and suspends processes, restarts Redis and makes the API fail, at random times."""

import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bench.soak import earlier_state
from bench.soak.findings import Accounting
from bench.soak.lost_moments import LostMoments
from bench.soak.system_under_test import Part, System

#: Roles that are spared after a while, so that processes live long enough to measure their memory.
SPARED_ROLES = ("device 0", "device 0 child", "api 0", "cpu 0", "cpu 0 child")
#: Seconds until the first fault.
FIRST_S = 3.0
#: Seconds that a kill -9 of Redis may undo: it delays writes to its file that long while the disk is slow.
DELAYED_WRITES_S = 2.0
#: Seconds that a rollback undoes, and by which a promoted replica lags.
ROLLBACK_S, LAG_S = (0.3, 1.5), (0.0, 1.0)
API_FAULTS: dict[str, dict[str, object]] = {
    "429": {"share_429": 0.7},
    "500": {"share_500": 0.7},
    "hangs": {"share_hang": 0.3},
    "cut connections": {"share_drop": 0.5},
    "garbage": {"share_garbage": 0.6},
    "refusals": {"share_refusal": 0.2, "share_unparsable": 0.2, "share_length": 0.2},
}
HEALTHY_API: dict[str, object] = {
    "share_429": 0,
    "share_500": 0,
    "share_hang": 0,
    "share_drop": 0,
    "share_garbage": 0,
    "share_refusal": 0,
    "share_unparsable": 0,
    "share_length": 0,
    "latency_ms": "5-50",
}


class FaultInjector:
    """Injects faults from a thread, and reverts the temporary faults when they are due."""

    def __init__(
        self,
        system: System,
        accounting: Accounting,
        lost: LostMoments,
        seed: int,
        fault_s: float,
        progress: Callable[[str], None],
    ) -> None:
        """`lost` gets the moments that Redis loses. `fault_s`: mean seconds between two faults."""
        self._system, self._accounting, self._fault_s, self._progress = system, accounting, fault_s, progress
        self._lost = lost
        self._chance = random.Random(f"{seed}:faults")
        self._over = threading.Event()
        self._sparing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="faults")
        self._suspended: list[tuple[float, psutil.Process]] = []
        self._api_healthy_at = 0.0
        self.log: list[tuple[float, str]] = []
        """Time (`time.time`) and description of each fault."""
        self.killed: set[int] = set()
        self._weights: dict[Callable[[], str], float] = {
            self._kill_child: 4,
            self._kill_worker: 3,
            self._kill_while_loading: 1,
            self._kill_launcher: 0.5,
            self._kill_web: 1.5,
            self._kill_policy_server: 2,
            self._kill_simulator: 1,
            self._terminate_state: 0.8,
            self._kill_state: 0.8,
            self._roll_back_state: 0.8,
            self._fail_over_state: 0.8,
            self._suspend_state: 0.8,
            self._kill_cache: 1,
            self._suspend_worker: 2,
            self._break_api: 3,
        }
        others = [fault for fault in self._weights if fault != self._kill_launcher]
        # Inject each fault once before random draws; launchers first, because they are spared later.
        self._due = [self._kill_launcher, *self._chance.sample(others, len(others))]
        self.counts = Counter(dict.fromkeys(map(_name, self._weights), 0))

    def start(self) -> None:
        self._system.api.set(**HEALTHY_API)
        self._thread.start()

    def spare_roles(self) -> None:
        self._sparing.set()

    def end(self) -> None:
        """Stop injecting faults; resume suspended processes and make the API healthy again."""
        self._over.set()
        self._thread.join()
        self._end_due_faults(float("inf"))

    def _run(self) -> None:
        next_at = time.monotonic() + FIRST_S
        while not self._over.wait(0.25):
            with self._accounting.recording("soak", "faults"):
                self._end_due_faults(time.monotonic())
                if time.monotonic() < next_at:
                    continue
                next_at = time.monotonic() + self._fault_s * self._chance.uniform(0.4, 1.6)
                if not (self._due and self._inject(self._due[0])):
                    self._inject(self._chance.choices(list(self._weights), list(self._weights.values()))[0])

    def _inject(self, fault: Callable[[], str]) -> bool:
        """Inject a fault. Returns False if it has no target at the moment; a due fault is then retried later."""
        description = ""
        with suppress(psutil.NoSuchProcess, OSError):
            description = fault()
        if description:
            self.log.append((time.time(), description))
            self.counts[_name(fault)] += 1
            self._progress(f"fault: {description}")
        if fault in self._due:
            self._due.remove(fault)
            self._due += [] if description else [fault]
        return bool(description)

    def _end_due_faults(self, now: float) -> None:
        for until, process in list(self._suspended):
            if until <= now:
                self._suspended.remove((until, process))
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)
        if self._api_healthy_at and self._api_healthy_at <= now:
            self._api_healthy_at = 0.0
            with suppress(OSError):
                self._system.api.set(**HEALTHY_API)

    # --- the faults ---

    def _kill_child(self) -> str:
        return self._kill(self._workers(child=True), "child")

    def _kill_worker(self) -> str:
        """Kill a worker with its descendants: in a container they die together."""
        return self._kill(self._workers(child=False), "worker", with_descendants=True)

    def _kill_while_loading(self) -> str:
        young = [part for part in self._workers(child=False) if time.time() - part.process.create_time() < 4]
        if young:
            return self._kill(young, "loading worker", with_descendants=True)
        victims = [part for part in self._workers(child=False) if part.role.startswith(("device", "cpu"))]
        if not victims:
            return ""
        role = self._chance.choice(victims).role
        first = self._kill([part for part in victims if part.role == role], "worker", with_descendants=True)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not self._over.wait(0.1):
            young = [part for part in self._workers(child=False) if part.role == role]
            if young and 0.3 < time.time() - young[0].process.create_time() < 5:
                time.sleep(self._chance.uniform(0, 1.5))
                return f"{first}, and again: " + self._kill(young, "loading worker", with_descendants=True)
        return first

    def _kill_launcher(self) -> str:
        found = self._parts(lambda role: role in ("launcher device", "launcher api", "launcher cpu"))
        return "" if self._sparing.is_set() else self._kill(found, "launcher")

    def _kill_web(self) -> str:
        found = sorted(self._parts(lambda role: role == "web"), key=lambda part: part.process.create_time())
        return self._kill(found[1 if self._sparing.is_set() else 0 :], "process")

    def _kill_policy_server(self) -> str:
        return self._kill(self._parts(lambda role: role.startswith("policy server")), "server")

    def _kill_simulator(self) -> str:
        return self._kill(self._parts(lambda role: role == "simulator"), "process")

    def _kill_cache(self) -> str:
        return self._kill(self._parts(lambda role: role == "redis-cache"), "Redis")

    def _kill_state(self) -> str:
        """Kill the state Redis. While a sync of its append-only file is pending, this undoes up to two seconds."""
        with self._stopped_state() as (redis, _):
            if redis:
                self._lost.add(time.time() - DELAYED_WRITES_S, time.time())
                return f"SIGKILL to the Redis redis-state (pid {redis.pid})"
        return ""

    def _roll_back_state(self) -> str:
        """Kill the state Redis, and cut the last moment off its append-only file, as a loss of power may do."""
        file = self._state_file()
        if not file:
            return ""
        before, since = file.stat(), time.time()
        self._over.wait(self._chance.uniform(*ROLLBACK_S))
        with self._stopped_state() as (redis, _):
            if redis and earlier_state.cut_back(file, before.st_size, before.st_ino):
                self._lost.add(min(since, time.time() - DELAYED_WRITES_S), time.time())
                return f"rollback of redis-state (pid {redis.pid}) by {time.time() - since:.2f} s"
            if redis:
                self._lost.add(time.time() - DELAYED_WRITES_S, time.time())
                return f"SIGKILL to the Redis redis-state (pid {redis.pid}), which had no new writes"
        return ""

    def _fail_over_state(self) -> str:
        """Kill the state Redis, and start it with the data of a replica that lags."""
        port = self._system.state.connection_pool.connection_kwargs["port"]
        with (
            tempfile.TemporaryDirectory(dir=self._system.folder) as name,
            earlier_state.replica_of(port, Path(name)) as replica,
        ):
            if not replica.follow():
                return ""
            replica.cut_off()
            since = time.time()
            self._over.wait(self._chance.uniform(*LAG_S))
            snapshot = replica.save()
            with self._stopped_state() as (redis, folder):
                if not redis:
                    return ""
                earlier_state.install(folder, snapshot)
                self._lost.add(since, time.time())
                return (
                    f"failover of redis-state (pid {redis.pid}) to a replica with a lag of {time.time() - since:.2f} s"
                )

    def _state_file(self) -> Path | None:
        for part in self._parts(lambda role: role == "redis-state"):
            with suppress(psutil.NoSuchProcess):
                return earlier_state.growing_file(Path(part.process.cwd()))
        return None

    @contextmanager
    def _stopped_state(self) -> Iterator[tuple[psutil.Process | None, Path]]:
        """Kill the state Redis, and keep its supervisor from starting it again during the block. Yields the process
        (None if there is none) and its folder."""
        parts = self._parts(lambda role: role == "redis-state")
        supervisor = parts[0].process.parent() if parts else None
        if not parts or not supervisor:
            yield None, Path()
            return
        redis, folder = parts[0].process, Path(parts[0].process.cwd())
        supervisor.suspend()
        try:
            redis.kill()
            self.killed.add(redis.pid)
            while redis.is_running() and redis.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.005)
            yield redis, folder
        finally:
            supervisor.resume()

    def _terminate_state(self) -> str:
        return self._kill(self._parts(lambda role: role == "redis-state"), "Redis", signal.SIGTERM)

    def _suspend_state(self) -> str:
        return self._suspend(self._parts(lambda role: role == "redis-state"), (1.0, 6.0))

    def _suspend_worker(self) -> str:
        return self._suspend(self._workers(child=self._chance.random() < 0.5), (1.0, 12.0))

    def _break_api(self) -> str:
        name = self._chance.choice(list(API_FAULTS))
        seconds = self._chance.uniform(2, 10)
        self._system.api.set(**HEALTHY_API | API_FAULTS[name])
        self._api_healthy_at = time.monotonic() + seconds
        return f"API faults for {seconds:.1f} s: {name}"

    # --- mechanics ---

    def _parts(self, wanted: Callable[[str], bool]) -> list[Part]:
        return [part for part in self._system.parts() if wanted(part.role)]

    def _workers(self, child: bool) -> list[Part]:
        def wanted(role: str) -> bool:
            is_worker = role.startswith(("device ", "api ", "cpu "))
            # An API worker has no child process: kill the worker itself.
            is_wanted = role.endswith(" child") or role.startswith("api ") if child else not role.endswith(" child")
            return is_worker and is_wanted and not (self._sparing.is_set() and role in SPARED_ROLES)

        return self._parts(wanted)

    def _kill(
        self,
        victims: Sequence[Part],
        kind: str,
        number: signal.Signals = signal.SIGKILL,
        with_descendants: bool = False,
    ) -> str:
        if not victims:
            return ""
        victim = self._chance.choice(victims)
        below = victim.process.children(recursive=True) if with_descendants else []
        for process in (victim.process, *below):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
                self.killed.add(process.pid)
        descendants = ", with its descendants" if below else ""
        return f"{number.name} to the {kind} {victim.role} (pid {victim.process.pid}{descendants})"

    def _suspend(self, victims: Sequence[Part], seconds: tuple[float, float]) -> str:
        if not victims:
            return ""
        victim, length = self._chance.choice(victims), self._chance.uniform(*seconds)
        victim.process.send_signal(signal.SIGSTOP)
        self._suspended.append((time.monotonic() + length, victim.process))
        return f"SIGSTOP to {victim.role} (pid {victim.process.pid}) for {length:.1f} s"


def _name(fault: Callable[[], str]) -> str:
    return fault.__name__.strip("_").replace("_", " ")
