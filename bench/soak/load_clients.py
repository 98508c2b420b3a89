"""Load clients: threads that submit jobs over HTTP, cancel, pause or retry some, and check the results."""

import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from assay import Assay
from assay.client import Job
from assay.errors import AssayError, Conflict, ConnectionFailed, NotFound, WaitTimeout
from assay.retry import Retry

from bench.soak.findings import CANCELLED, DONE, LATE, Accounting, End, JobResult
from bench.soak.lost_moments import LostMoments
from bench.soak.workload import PlannedJob, draw_job

#: Seconds for which a load client retries while the API is unavailable.
RETRY_S = 150.0
#: Actions of a load client on its job, and their weights.
ACTIONS = ("none", "cancel", "pause", "retry", "repeat", "conflict", "twice")
WEIGHTS = (8, 1, 1, 1, 1.5, 0.5, 1.5)


class _Undone(Exception):
    """Redis lost the record of an idempotency key, and with it the job."""


class LoadClients:
    """A number of load clients, each in a thread."""

    def __init__(self, url: str, accounting: Accounting, lost: LostMoments, seed: int, number: int) -> None:
        self._accounting = accounting
        self._lost = lost
        self._url = url
        self._over = threading.Event()
        self._with_poison = threading.Event()
        self._with_poison.set()
        self.open: dict[str, str] = {}
        """Names of the accepted jobs that are not checked yet, by id."""
        self._answers: dict[str, str] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}:{at}"),), name=f"load client {at}")
            for at in range(number)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def exclude_poison(self) -> None:
        self._with_poison.clear()

    def end(self, timeout_s: float) -> None:
        """Stop submitting, and wait for the open jobs. Adds a finding for each job or thread that is not done in
        time."""
        self._over.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for job, name in list(self.open.items()):
            self._accounting.add_findings(
                "outcomes", f"{name} {job}", f"the job has not ended {timeout_s:.0f} s after the last fault"
            )
        for thread in self._threads:
            if thread.is_alive():  # even without an open job: it may wait for a submission
                self._accounting.add_findings(
                    "soak", thread.name, f"the thread still runs {timeout_s:.0f} s after the last fault"
                )

    def _run(self, chance: random.Random) -> None:
        with (
            self._accounting.recording("soak", threading.current_thread().name),
            Assay(self._url, retry=Retry(give_up_after_s=RETRY_S, max_delay_s=3.0)) as client,
        ):
            while not self._over.is_set():
                planned = draw_job(chance, self._with_poison.is_set())
                action = chance.choices(ACTIONS, WEIGHTS)[0]
                where = f"{planned.name} ({action})"
                with self._accounting.recording("outcomes", where):
                    try:
                        self._run_job(client, planned, action, chance)
                    except AssayError as error:
                        self._accounting.add_findings("outcomes", where, f"{type(error).__name__}: {error}")
                self._over.wait(chance.uniform(0.0, 0.6))

    def _run_job(self, client: Assay, planned: PlannedJob, action: str, chance: random.Random) -> None:
        self._accounting.count("items accepted", len(planned.items))
        self._accounting.count("jobs accepted")
        self._accounting.count(f"action: {action}")
        key = uuid.UUID(int=chance.getrandbits(128)).hex
        while True:
            began_at = time.time()
            job = self._submit(client, planned, key)
            accepted_at = time.time()
            self.open[job.id] = planned.name
            try:
                self._follow(client, job, planned, key, action, chance)
                return
            except (NotFound, _Undone):
                if not self._lost.has(began_at, accepted_at):
                    raise
                # Redis lost the moment in which it accepted the job: submit it again, as a user would.
                self._accounting.count("jobs submitted again")
                if action == "conflict":  # the other body may have taken the key
                    key = uuid.UUID(int=chance.getrandbits(128)).hex
                action = "none"
            finally:
                self.open.pop(job.id, None)

    def _follow(
        self, client: Assay, job: Job, planned: PlannedJob, key: str, action: str, chance: random.Random
    ) -> None:
        """Follow a job to its end, and check it. Raises NotFound or _Undone if Redis does not know the job."""
        moments = self._lost.number
        where = f"{planned.name} {job.id}"
        if action == "repeat":
            again = self._submit(client, planned, key)
            if again.id != job.id:
                if self._lost.number != moments:
                    raise _Undone
                self._accounting.add_findings(
                    "idempotency", where, f"a repeated submission with the same key created another job: {again.id}"
                )
        elif action == "conflict":
            self._submit_another(client, planned, key, where, moments)
        elif action == "cancel":
            time.sleep(chance.uniform(0.0, 1.5))
            job.cancel()
        elif action == "pause":
            self._pause(job, chance)
        _wait(job)
        if action == "retry":
            self._retry(job)
        result = self._result(client, job.id, planned)
        self._accounting.check_job(result, planned.expected, ends_of(planned, action))
        if planned.name == "inference":
            self._compare_answers(planned, result, where)
        if action == "twice":
            moments = self._lost.number
            time.sleep(chance.uniform(0.5, 3.0))
            rows = self._result(client, job.id, planned).rows
            if rows != result.rows and self._lost.number == moments:  # after a lost moment, items may have run again
                self._accounting.add_findings(
                    "outcomes", where, "two reads of an ended job returned different outcomes"
                )

    def _result(self, client: Assay, job_id: str, planned: PlannedJob) -> JobResult:
        """Wait for the end of a job, and read its rows; again if Redis lost a moment meanwhile, and perhaps the end."""
        while True:
            moments = self._lost.number
            job = client.job(job_id)
            _wait(job)
            result = _read(job, planned)
            if self._lost.number == moments:
                return result

    def _submit(self, client: Assay, planned: PlannedJob, key: str) -> Job:
        options: Any = planned.options | {"idempotency_key": key, "metadata": {"workload": planned.name}}
        items: Any = _each(planned.items) if planned.is_streamed else planned.items
        return client.submit(planned.kind, items, planned.spec, **options)

    def _submit_another(self, client: Assay, planned: PlannedJob, key: str, where: str, moments: int) -> None:
        """Submit another body with the same idempotency key, which the server must refuse."""
        other = replace(planned, items=planned.items[:-1] or planned.items * 2, expected=[], is_streamed=False)
        try:
            job = self._submit(client, other, key)
        except Conflict:
            return
        if self._lost.number != moments:
            raise _Undone
        self._accounting.add_findings("idempotency", where, f"another body with the same key was accepted, as {job.id}")

    def _pause(self, job: Job, chance: random.Random) -> None:
        try:
            job.pause()
            time.sleep(chance.uniform(0.2, 2.0))
            job.resume()
        except Conflict:  # the job has ended already
            job.refresh()

    def _retry(self, job: Job) -> None:
        try:
            job.retry()
        except Conflict:
            job.refresh()
        except ConnectionFailed:  # the retry may have been executed: do not repeat it
            self._accounting.count("retries whose response was lost")
            job.refresh()

    def _compare_answers(self, planned: PlannedJob, result: JobResult, where: str) -> None:
        """Check that equal prompts have equal answers: true at temperature 0 on a CPU, on every worker."""
        for item, row in zip(planned.items, result.rows, strict=False):
            if row["status"] == "ok":
                answer = row["value"]["answers"][0]
                if self._answers.setdefault(item["query"], answer) != answer:
                    self._accounting.add_findings(
                        "scores", where, f"{item['query']} is {answer!r}, but had another answer before"
                    )


def ends_of(planned: PlannedJob, action: str) -> set[End]:
    """Return the allowed ends of the job. `failed` is not allowed: no planned job limits the share of failed items."""
    return (
        {DONE} | ({LATE} if "deadline_s" in planned.options else set()) | ({CANCELLED} if action == "cancel" else set())
    )


def _each(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from items


def _wait(job: Job) -> None:
    """Wait for the end of the job without a timeout: `LoadClients.end` reports jobs that do not end."""
    while True:
        try:
            job.wait(30, progress=False, raise_on_failure=False)
            return
        except WaitTimeout:
            with suppress(Conflict):  # Redis may have lost its resumption
                job.resume()


def _read(job: Job, planned: PlannedJob) -> JobResult:
    rows = [dict(row.raw) for row in job.results()]
    view = job.view
    return JobResult(job.id, planned.name, view.state, view.reason, view.total or 0, view.ok, view.failed, rows)
