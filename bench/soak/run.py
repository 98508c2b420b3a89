"""One soak from start to report."""

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from redis.exceptions import RedisError

from bench.soak import memory, orphans
from bench.soak.books import Books
from bench.soak.customers import Customers
from bench.soak.deaths import ended_by_themselves
from bench.soak.faults import Faults
from bench.soak.memory import Bound, Watch, growth_of
from bench.soak.report import Line, Run
from bench.soak.system import JOB_TTL_S, System
from bench.soak.trainers import Trainer
from tasks.apis.usage import of_profile, today

#: Customers at a time.
CUSTOMERS = 6
#: Seconds that what is under way may take to end after the last fault, and jobs to expire after that.
DRAIN_S, EXPIRE_S = 180.0, JOB_TTL_S + 60.0
#: Seconds between two lines of progress.
SAY_S = 15.0
#: Share of the time after which poison and the killing of witnesses end, so that there are lives to measure; and after
#: which they are measured.
SPARED_FROM, MEASURED_FROM = 0.3, 0.5
#: Bytes of Redis that an idle system may have more at the end than at the beginning, in MB: scripts, buffers, usage.
MORE_MB = 3.0
#: Lines of the system's log that are counted.
LINES = {
    "taken back from a dead process": r"is gone: \d+ items",
    "taken back from a silent process": r"is gone \(no heartbeat\)",
    "started again": r"starting it again in",
    "announced again": r"announcing \d+ again",
    "lost its consumer": r"nothing comes in although",
    "nobody reads a queue": r"nobody reads",
    "Redis away": r"does not answer",
    "given up": r"is not started again",
    "errors with a traceback": r"^Traceback",
}


class Soak:
    def __init__(self, folder: Path, minutes: float, seed: int, fault_s: float, say: Callable[[str], None]) -> None:
        """`fault_s`: seconds between two faults, on average."""
        self._say = say
        self._seconds = minutes * 60
        self.books, self.run = Books(), Run(seed, minutes, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()))
        self._system = System(folder)
        self._watch = Watch(self._system, self.books)
        self._faults = Faults(self._system, self.books, seed, fault_s, say)
        self._customers = Customers(self._system.url, self.books, seed, CUSTOMERS)
        self._trainer = Trainer(self._system.url, self.books, seed)
        self._began = time.monotonic()

    def __call__(self) -> tuple[Run, Books]:
        self._say(f"starting a system in {self._system.folder}")
        try:
            self._system.start()
            self._work()
        finally:
            self._stop()
        self.run.seconds = time.monotonic() - self._began
        return self.run, self.books

    def _work(self) -> None:
        idle_mb = self._watch.redis_mb(self._system.state)
        self._began = time.monotonic()
        started_at = time.time()
        self._watch.began = self._began
        self._watch.start()
        self._customers.start()
        self._trainer.start()
        self._faults.start()
        try:
            self._pass_time()
        finally:
            self._say("no more faults; waiting for what is under way")
            self._faults.end()
            end = time.monotonic() + DRAIN_S
            self._customers.end(DRAIN_S)
            self._trainer.end(max(1.0, end - time.monotonic()))
            self._watch.end()
            self._watch.write(self._system.folder / "looks.csv")
            self.run.faults = [(at - started_at, what) for at, what in self._faults.log]
            self.run.fault_counts = self._faults.counts
        self.books.balance()
        self._note_counts()
        self._check_calls()
        self._check_growth()
        self._say(f"all has ended; waiting for jobs to expire ({JOB_TTL_S} s)")
        self._check_orphans()
        self._check_idle_redis(idle_mb)

    def _pass_time(self) -> None:
        said = self._began
        while (passed := time.monotonic() - self._began) < self._seconds:
            time.sleep(0.2)
            if passed > self._seconds * SPARED_FROM:
                self._faults.spare_witnesses()
                self._customers.leave_out_poison()
            if time.monotonic() - said > SAY_S:
                said = time.monotonic()
                counts = self.books.counts
                self._say(
                    f"{counts['jobs accepted']} jobs, {counts['items accepted']} items, "
                    f"{len(self._customers.open)} open; {sum(self._faults.counts.values())} faults; "
                    f"{len(self.books.findings)} findings"
                )
            if not self._system.is_running:
                self.books.find("processes", "up", "it ended by itself")
                return

    def _note_counts(self) -> None:
        counts, notes = self.books.counts, self.books.notes
        notes["idempotency"] = f"{counts['twist: repeat']} keys repeated, {counts['twist: conflict']} with another body"
        notes["rollouts"] = (
            f"{counts['rollouts ended']} of {counts['rollouts accepted']} ended; samples acknowledged: "
            f"{counts['samples acknowledged']:,}, dropped as stale: {counts['samples dropped as stale']:,}"
        )

    def _check_calls(self) -> None:
        """What the API answered and what was used of it: a killed worker takes answers with it, but none is made up."""
        there = self._system.api.counts()
        days = {self.run.began.split()[0], today()}
        here = sum(of_profile(self._system.state, "development", day).calls for day in days)
        answered = there["by_status"].get("200", 0)
        self.books.notes["calls"] = f"{there['calls']} made, {answered} answered with 200, {here} counted here"
        if here > answered:
            self.books.find("calls", "development", f"{here} are counted, and {answered} were answered")

    def _check_growth(self) -> None:
        since = self._seconds * MEASURED_FROM
        tables: tuple[tuple[str, int, list[Line], Bound], ...] = (
            ("memory", 1, self.run.memory, memory.MEMORY),
            ("descriptors", 2, self.run.descriptors, memory.DESCRIPTORS),
            ("descriptors", 3, self.run.threads, memory.THREADS),
        )
        for name, life in sorted(self._watch.lives.items()):
            self.run.lives[life.role] += 1
            for book, column, table, bound in tables:
                growth = growth_of([(look[0], float(look[column])) for look in life.looks], since)
                table.append(Line(name, growth))
                if growth.exceeds(bound):
                    what = ("MB", "descriptors", "threads")[column - 1]
                    self.books.find(book, name, f"{growth.per_10_min:+.1f} {what} per ten minutes")
        for role, looks in self._watch.redis.items():
            growth = growth_of(looks, since)
            self.run.redis.append(Line(role, growth))
            if growth.exceeds(memory.REDIS):
                self.books.find("redis", role, f"{growth.per_10_min:+.1f} MB per ten minutes")
        for book in self.run.unmeasured():
            self.books.find(book, "all processes", "no life was long enough to be measured")
        measured = [line for line in self.run.memory if line.growth.per_10_min is not None]
        most = max(measured, key=lambda line: line.growth.per_10_min or 0.0, default=None)
        said = f"{len(measured)} of {len(self.run.memory)} lives were long enough to measure"
        self.books.notes["memory"] = said + (
            f"; the most is {most.name}, {most.growth.per_10_min:+.1f} MB per ten minutes" if most else ""
        )

    def _check_orphans(self) -> None:
        system, deadline = self._system, time.monotonic() + EXPIRE_S
        cut_off = 0
        while True:
            try:
                # An upload that was cut off is kept for an hour, should the rest come. Have that be over.
                cut_off += orphans.hurry_staging(system.state)
                found, cached = orphans.keys_of(system.state), orphans.keys_of(system.cache)
                wrong = orphans.orphans(found, orphans.STATE) + orphans.loads_left(system.state)
            except RedisError as error:
                found, cached, wrong = {}, {}, [f"Redis cannot be asked: {error}"]
            files = list(orphans.files_in(system.storage, ("jobs",)))
            if (not wrong and not files) or time.monotonic() > deadline:
                break
            time.sleep(1.0)
        self.run.keys = orphans.by_pattern(found, orphans.STATE)
        self.books.notes["keys"] = f"{len(found)} keys are left in the state, {len(cached)} in the cache"
        self.books.notes["files"] = f"{len(files)} in the storage; {cut_off} uploads were cut off and swept"
        self.books.find("keys", "state", *wrong)
        self.books.find("keys", "cache", *orphans.orphans(cached, orphans.CACHE))
        self.books.find("files", "storage", *files)

    def _check_idle_redis(self, before_mb: float) -> None:
        after_mb = self._watch.redis_mb(self._system.state)
        self.books.notes["redis"] = f"the idle state had {before_mb:.1f} MB before and has {after_mb:.1f} MB after"
        if after_mb > before_mb + MORE_MB:
            self.books.find("redis", "state", f"idle it has {after_mb - before_mb:.1f} MB more than at the beginning")

    def _stop(self) -> None:
        self._say("stopping")
        ended = ended_by_themselves(self._log(), self._faults.killed)  # before all are told to end
        left = self._system.stop()
        text = self._log()
        self.run.log_counts = Counter(
            {name: len(re.findall(pattern, text, re.MULTILINE)) for name, pattern in LINES.items()}
        )
        self.books.find("processes", "after the end", *left)
        if gave_up := re.findall(r".*is not started again.*", text):
            self.books.find("processes", "supervision", *gave_up)
        for (name, how), times in ended.items():
            self.books.find("processes", name, f"it ended by itself {times} times, with {how}")
        self.books.notes["processes"] = f"{len(left)} left after stop; {ended.total()} ended by themselves"
        self.books.find("files", "temporary", *orphans.files_in(self._system.temporary, orphans.TEMPORARY))

    def _log(self) -> str:
        return self._system.log.read_text(errors="replace") if self._system.log.exists() else ""
