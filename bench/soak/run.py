"""Run of a soak, from the start of the system to the checks."""

import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from redis.exceptions import RedisError

from bench.soak import leaks, resource_growth
from bench.soak.fault_injector import FaultInjector
from bench.soak.findings import Accounting
from bench.soak.load_clients import LoadClients
from bench.soak.lost_moments import LostMoments
from bench.soak.report import Line, Run
from bench.soak.resource_growth import Bound, ResourceMonitor, growth_of
from bench.soak.rollout_trainer import Trainer
from bench.soak.system_under_test import JOB_TTL_S, System
from bench.soak.unexpected_exits import unexpected_exits
from tasks.providers.usage import of_profile, today

#: Number of concurrent load clients.
LOAD_CLIENTS = 6
#: Seconds for open jobs to end after the last fault, and for jobs to expire after that.
DRAIN_S, EXPIRE_S = 180.0, JOB_TTL_S + 60.0
#: Seconds between two progress lines.
PROGRESS_S = 15.0
#: Seconds within which the files of a job are written after its submission.
UPLOAD_S = 10.0
#: Share of the time after which poison items and faults of the spared roles end, so that processes live long enough to
#: be
#: measured; and share after which they are measured.
SPARED_FROM, MEASURED_FROM = 0.3, 0.5
#: Allowed growth of the idle state Redis over the run, in MB: scripts, buffers, usage records.
IDLE_GROWTH_MB = 3.0
#: Log line of an audit that had to repair a job. The ledger causes no such job, so it is a finding.
REPAIRED = r"stood still: \d+ items"
#: Lines of the system's log that are counted, as regular expressions.
LOG_PATTERNS = {
    "recovered from a dead process": r"is dead: \d+ items",
    "recovered from a process without heartbeat": r"\(no heartbeat\)",
    "restarted": r"starting it again in",
    "version announced again": r"announcing \d+ again",
    "Celery consumer lost": r"no message arrives although",
    "queue without a worker": r"no worker consumes",
    "Redis unavailable": r"does not answer",
    "chunks held again after a lost moment": r"Redis lost its last moment",
    "repaired by an audit": REPAIRED,
    "restart abandoned": r"is not started again",
    "errors with a traceback": r"^Traceback",
}


class Soak:
    """Starts a system, load clients, a trainer and faults; then stops them and checks the accounting."""

    def __init__(
        self, folder: Path, minutes: float, seed: int, fault_s: float, progress: Callable[[str], None]
    ) -> None:
        """`fault_s`: mean seconds between two faults."""
        self._progress = progress
        self._seconds = minutes * 60
        self.accounting, self.run = Accounting(), Run(seed, minutes, time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()))
        self._system = System(folder)
        self._monitor = ResourceMonitor(self._system, self.accounting)
        self._lost = LostMoments()
        self._faults = FaultInjector(self._system, self.accounting, self._lost, seed, fault_s, progress)
        self._clients = LoadClients(self._system.url, self.accounting, self._lost, seed, LOAD_CLIENTS)
        self._trainer = Trainer(self._system.url, self.accounting, self._lost, seed)
        self._started = time.monotonic()

    def __call__(self) -> tuple[Run, Accounting]:
        self._progress(f"starting a system in {self._system.folder}")
        try:
            self._system.start()
            self._run_load()
        finally:
            self._stop()
        self.run.seconds = time.monotonic() - self._started
        return self.run, self.accounting

    def _run_load(self) -> None:
        idle_mb = self._monitor.redis_mb(self._system.state)
        self._started = time.monotonic()
        started_at = time.time()
        self._monitor.started = self._started
        self._monitor.start()
        self._clients.start()
        self._trainer.start()
        self._faults.start()
        try:
            self._wait_for_end()
        finally:
            self._progress("no more faults; waiting for open jobs")
            self._faults.end()
            end = time.monotonic() + DRAIN_S
            self._clients.end(DRAIN_S)
            self._trainer.end(max(1.0, end - time.monotonic()))
            self._monitor.end()
            self._monitor.write(self._system.folder / "samples.csv")
            self.run.faults = [(at - started_at, description) for at, description in self._faults.log]
            self.run.fault_counts = self._faults.counts
        self.accounting.check_totals()
        self._note_counts()
        self._check_calls()
        self._check_growth()
        self._progress(f"all jobs have ended; waiting for them to expire ({JOB_TTL_S} s)")
        self._check_leaks()
        self._check_idle_redis(idle_mb)

    def _wait_for_end(self) -> None:
        printed = self._started
        while (passed := time.monotonic() - self._started) < self._seconds:
            time.sleep(0.2)
            if passed > self._seconds * SPARED_FROM:
                self._faults.spare_roles()
                self._clients.exclude_poison()
            if time.monotonic() - printed > PROGRESS_S:
                printed = time.monotonic()
                counts = self.accounting.counts
                self._progress(
                    f"{counts['jobs accepted']} jobs, {counts['items accepted']} items, "
                    f"{len(self._clients.open)} open; {sum(self._faults.counts.values())} faults; "
                    f"{len(self.accounting.findings)} findings"
                )
            if not self._system.is_running:
                self.accounting.add_findings("processes", "up", "the process ended unexpectedly")
                return

    def _note_counts(self) -> None:
        counts, notes = self.accounting.counts, self.accounting.notes
        notes["idempotency"] = (
            f"{counts['action: repeat']} repeated keys, {counts['action: conflict']} with another body"
        )
        notes["outcomes"] += f"; {counts['jobs submitted again']} jobs were submitted again, because Redis lost them"
        notes["rollouts"] = (
            f"{counts['rollouts ended']} of {counts['rollouts accepted']} ended; samples acknowledged: "
            f"{counts['samples acknowledged']:,}, dropped as stale: {counts['samples dropped as stale']:,}"
        )

    def _check_calls(self) -> None:
        """Compare the counted calls with those that the API answered: a killed worker may lose answers, but adds
        none."""
        api = self._system.api.counts()
        days = {self.run.began.split()[0], today()}
        counted = sum(of_profile(self._system.state, "development", day).calls for day in days)
        answered = api["by_status"].get("200", 0)
        self.accounting.notes["calls"] = (
            f"{api['calls']} made, {answered} answered with 200, {counted} counted by the system"
        )
        if counted > answered:
            self.accounting.add_findings(
                "calls", "development", f"{counted} calls are counted, but {answered} were answered"
            )

    def _check_growth(self) -> None:
        since = self._seconds * MEASURED_FROM
        tables: tuple[tuple[str, int, list[Line], Bound], ...] = (
            ("memory", 1, self.run.memory, resource_growth.MEMORY),
            ("descriptors", 2, self.run.descriptors, resource_growth.DESCRIPTORS),
            ("descriptors", 3, self.run.threads, resource_growth.THREADS),
        )
        for name, process in sorted(self._monitor.processes.items()):
            self.run.starts[process.role] += 1
            for check, column, table, bound in tables:
                growth = growth_of([(sample[0], float(sample[column])) for sample in process.samples], since)
                table.append(Line(name, growth))
                if growth.exceeds(bound):
                    unit = ("MB", "descriptors", "threads")[column - 1]
                    self.accounting.add_findings(check, name, f"{growth.per_10_min:+.1f} {unit} per ten minutes")
        for role, samples in self._monitor.redis.items():
            growth = growth_of(samples, since)
            self.run.redis.append(Line(role, growth))
            if growth.exceeds(resource_growth.REDIS):
                self.accounting.add_findings("redis", role, f"{growth.per_10_min:+.1f} MB per ten minutes")
        for check in self.run.unmeasured():
            self.accounting.add_findings(check, "all processes", "no process lived long enough to be measured")
        measured = [line for line in self.run.memory if line.growth.per_10_min is not None]
        most = max(measured, key=lambda line: line.growth.per_10_min or 0.0, default=None)
        note = f"{len(measured)} of {len(self.run.memory)} processes lived long enough to be measured"
        self.accounting.notes["memory"] = note + (
            f"; the largest growth is that of {most.name}, {most.growth.per_10_min:+.1f} MB per ten minutes"
            if most
            else ""
        )

    def _check_leaks(self) -> None:
        system, deadline = self._system, time.monotonic() + EXPIRE_S
        interrupted = 0
        while True:
            try:
                # An interrupted upload is kept for an hour, in case it continues: shorten that hour.
                interrupted += leaks.expire_staging(system.state)
                found, cached = leaks.keys_with_ttl(system.state), leaks.keys_with_ttl(system.cache)
                wrong = leaks.unexpected_keys(found, leaks.STATE_KEYS) + leaks.loads_left(system.state)
            except RedisError as error:
                found, cached, wrong = {}, {}, [f"Redis does not answer: {error}"]
            files = list(leaks.leftover_files(system.storage, ("jobs",)))
            forgotten = [file for file in files if self._is_forgotten(system.storage / file)]
            files = [file for file in files if file not in forgotten]
            if (not wrong and not files) or time.monotonic() > deadline:
                break
            time.sleep(1.0)
        self.run.keys = leaks.by_pattern(found, leaks.STATE_KEYS)
        self.accounting.notes["keys"] = f"{len(found)} keys remain in the state Redis, {len(cached)} in the cache"
        self.accounting.notes["files"] = (
            f"{len(files)} remain in the storage, and {len(forgotten)} of jobs that Redis lost; "
            f"{interrupted} interrupted uploads were deleted"
        )
        self.accounting.add_findings("keys", "state", *wrong)
        self.accounting.add_findings("keys", "cache", *leaks.unexpected_keys(cached, leaks.CACHE_KEYS))
        self.accounting.add_findings("files", "storage", *files)

    def _is_forgotten(self, file: Path) -> bool:
        """Return whether a file was written just after a moment that Redis lost: Redis has lost its job, too."""
        with suppress(FileNotFoundError):
            written_at = file.stat().st_mtime
            return self._lost.has(written_at - UPLOAD_S, written_at)
        return False

    def _check_idle_redis(self, before_mb: float) -> None:
        after_mb = self._monitor.redis_mb(self._system.state)
        self.accounting.notes["redis"] = (
            f"the idle state Redis had {before_mb:.1f} MB before the run and has {after_mb:.1f} MB after it"
        )
        if after_mb > before_mb + IDLE_GROWTH_MB:
            self.accounting.add_findings(
                "redis", "state", f"when idle, it has {after_mb - before_mb:.1f} MB more than before the run"
            )

    def _stop(self) -> None:
        self._progress("stopping")
        ended = unexpected_exits(self._log(), self._faults.killed)  # read the log before the processes are told to stop
        left = self._system.stop()
        text = self._log()
        self.run.log_counts = Counter(
            {name: len(re.findall(pattern, text, re.MULTILINE)) for name, pattern in LOG_PATTERNS.items()}
        )
        self.accounting.add_findings("processes", "after the stop", *left)
        if abandoned := re.findall(r".*is not started again.*", text):
            self.accounting.add_findings("processes", "supervision", *abandoned)
        self.accounting.add_findings("outcomes", "audit", *re.findall(rf".*{REPAIRED}.*", text))
        for (name, how), times in ended.items():
            self.accounting.add_findings("processes", name, f"it ended unexpectedly {times} times, with {how}")
        self.accounting.notes["processes"] = f"{len(left)} remained after the stop; {ended.total()} ended unexpectedly"
        self.accounting.add_findings(
            "files", "temporary", *leaks.leftover_files(self._system.temporary, leaks.TEMPORARY_FILES)
        )

    def _log(self) -> str:
        return self._system.log.read_text(errors="replace") if self._system.log.exists() else ""
