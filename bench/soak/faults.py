"""Faults at random times: what an out-of-memory killer, a restarted Redis or a bad day of an API do to a system."""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import psutil

from bench.soak.books import Books
from bench.soak.system import Part, System

#: Parts that are spared after a while, so that there are lives long enough to measure.
WITNESSES = ("device 0", "device 0 child", "api 0", "cpu 0", "cpu 0 child")
#: Seconds until the first fault.
FIRST_S = 3.0
STORMS: dict[str, dict[str, object]] = {
    "429": {"share_429": 0.7},
    "500": {"share_500": 0.7},
    "hangs": {"share_hang": 0.3},
    "cut connections": {"share_drop": 0.5},
    "garbage": {"share_garbage": 0.6},
    "refusals": {"share_refusal": 0.2, "share_unparsable": 0.2, "share_length": 0.2},
}
FAIR_WEATHER: dict[str, object] = {
    "share_429": 0, "share_500": 0, "share_hang": 0, "share_drop": 0, "share_garbage": 0, "share_refusal": 0,
    "share_unparsable": 0, "share_length": 0, "latency_ms": "5-50",
}  # fmt: skip


class Faults:
    def __init__(self, system: System, books: Books, seed: int, fault_s: float, say: Callable[[str], None]) -> None:
        """`fault_s`: seconds between two, on average."""
        self._system, self._books, self._fault_s, self._say = system, books, fault_s, say
        self._chance = random.Random(f"{seed}:faults")
        self._over = threading.Event()
        self._sparing = threading.Event()
        self._thread = threading.Thread(target=self._live, name="faults")
        self._stopped: list[tuple[float, psutil.Process]] = []
        self._fair_at = 0.0
        self.log: list[tuple[float, str]] = []
        """When, in seconds of `time.time`, and what."""
        self.killed: set[int] = set()
        self._menu: dict[Callable[[], str], float] = {
            self._kill_child: 4, self._kill_worker: 3, self._kill_while_loading: 1, self._kill_launcher: 0.5,
            self._kill_web: 1.5, self._kill_policy_server: 2, self._kill_simulator: 1, self._terminate_state: 0.8,
            self._kill_state: 0.8, self._stall_state: 0.8, self._kill_cache: 1, self._freeze: 2, self._storm: 3,
        }  # fmt: skip
        others = [fault for fault in self._menu if fault != self._kill_launcher]
        # Each once before chance alone decides; launchers first, as they are spared later.
        self._due = [self._kill_launcher, *self._chance.sample(others, len(others))]
        self.counts = Counter(dict.fromkeys(map(_name, self._menu), 0))

    def start(self) -> None:
        self._system.api.set(**FAIR_WEATHER)
        self._thread.start()

    def spare_witnesses(self) -> None:
        self._sparing.set()

    def end(self) -> None:
        """No more faults; what was stopped goes on, and the API is well again."""
        self._over.set()
        self._thread.join()
        self._tidy(float("inf"))

    def _live(self) -> None:
        next_at = time.monotonic() + FIRST_S
        while not self._over.wait(0.25):
            with self._books.telling("soak", "faults"):
                self._tidy(time.monotonic())
                if time.monotonic() < next_at:
                    continue
                next_at = time.monotonic() + self._fault_s * self._chance.uniform(0.4, 1.6)
                if not (self._due and self._commit(self._due[0])):
                    self._commit(self._chance.choices(list(self._menu), list(self._menu.values()))[0])

    def _commit(self, fault: Callable[[], str]) -> bool:
        """Whether there was anything for it to hit."""
        what = ""
        with suppress(psutil.NoSuchProcess, OSError):
            what = fault()
        if what:
            self.log.append((time.time(), what))
            self.counts[_name(fault)] += 1
            self._say(f"fault: {what}")
        if fault in self._due:
            self._due.remove(fault)
            self._due += [] if what else [fault]
        return bool(what)

    def _tidy(self, now: float) -> None:
        for until, process in list(self._stopped):
            if until <= now:
                self._stopped.remove((until, process))
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)
        if self._fair_at and self._fair_at <= now:
            self._fair_at = 0.0
            with suppress(OSError):
                self._system.api.set(**FAIR_WEATHER)

    # --- the faults ---

    def _kill_child(self) -> str:
        return self._kill(self._workers(child=True), "child")

    def _kill_worker(self) -> str:
        """With all below it: in a container they die together."""
        return self._kill(self._workers(child=False), "worker", whole=True)

    def _kill_while_loading(self) -> str:
        young = [part for part in self._workers(child=False) if time.time() - part.process.create_time() < 4]
        if young:
            return self._kill(young, "worker while it loads", whole=True)
        victims = [part for part in self._workers(child=False) if part.role.startswith(("device", "cpu"))]
        if not victims:
            return ""
        role = self._chance.choice(victims).role
        first = self._kill([part for part in victims if part.role == role], "worker", whole=True)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and not self._over.wait(0.1):
            young = [part for part in self._workers(child=False) if part.role == role]
            if young and 0.3 < time.time() - young[0].process.create_time() < 5:
                time.sleep(self._chance.uniform(0, 1.5))
                return f"{first}, and again: " + self._kill(young, "worker while it loads", whole=True)
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
        """Not while it waits for its disk: then it holds back, for two seconds at most, what it has answered already,
        and would lose it, as its documentation says."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            with suppress(Exception):
                if not self._system.state.info("persistence")["aof_pending_bio_fsync"]:
                    break
            time.sleep(0.01)
        return self._kill(self._parts(lambda role: role == "redis-state"), "Redis")

    def _terminate_state(self) -> str:
        return self._kill(self._parts(lambda role: role == "redis-state"), "Redis", signal.SIGTERM)

    def _stall_state(self) -> str:
        return self._stop(self._parts(lambda role: role == "redis-state"), (1.0, 6.0))

    def _freeze(self) -> str:
        return self._stop(self._workers(child=self._chance.random() < 0.5), (1.0, 12.0))

    def _storm(self) -> str:
        name = self._chance.choice(list(STORMS))
        seconds = self._chance.uniform(2, 10)
        self._system.api.set(**FAIR_WEATHER | STORMS[name])
        self._fair_at = time.monotonic() + seconds
        return f"API storm for {seconds:.1f} s: {name}"

    # --- how ---

    def _parts(self, wanted: Callable[[str], bool]) -> list[Part]:
        return [part for part in self._system.parts() if wanted(part.role)]

    def _workers(self, child: bool) -> list[Part]:
        def wanted(role: str) -> bool:
            is_worker = role.startswith(("device ", "api ", "cpu "))
            # An API worker has no child: it is killed by itself.
            is_wanted = role.endswith(" child") or role.startswith("api ") if child else not role.endswith(" child")
            return is_worker and is_wanted and not (self._sparing.is_set() and role in WITNESSES)

        return self._parts(wanted)

    def _kill(
        self, victims: Sequence[Part], what: str, number: signal.Signals = signal.SIGKILL, whole: bool = False
    ) -> str:
        if not victims:
            return ""
        victim = self._chance.choice(victims)
        below = victim.process.children(recursive=True) if whole else []
        for process in (victim.process, *below):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
                self.killed.add(process.pid)
        return f"{number.name} to the {what} {victim.role} (pid {victim.process.pid}{', with all below' * bool(below)})"

    def _stop(self, victims: Sequence[Part], seconds: tuple[float, float]) -> str:
        if not victims:
            return ""
        victim, length = self._chance.choice(victims), self._chance.uniform(*seconds)
        victim.process.send_signal(signal.SIGSTOP)
        self._stopped.append((time.monotonic() + length, victim.process))
        return f"SIGSTOP to {victim.role} (pid {victim.process.pid}) for {length:.1f} s"


def _name(fault: Callable[[], str]) -> str:
    return fault.__name__.strip("_").replace("_", " ")
