"""Customers: each asks for jobs over HTTP as users do, meddles with some, reads the results and enters them."""

import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from assay import Assay
from assay.client import Job
from assay.errors import AssayError, Conflict, ConnectionFailed, WaitTimeout
from assay.retry import Retry

from bench.soak.books import CANCELLED, DONE, LATE, Account, Books, End
from bench.soak.orders import Order, draw

#: Seconds a customer goes on trying while the API is away.
PATIENCE_S = 150.0
#: What some customers do with their jobs.
TWISTS = ("none", "cancel", "pause", "retry", "repeat", "conflict", "twice")
WEIGHTS = (8, 1, 1, 1, 1.5, 0.5, 1.5)


class Customers:
    def __init__(self, url: str, books: Books, seed: int, number: int) -> None:
        self._books = books
        self._url = url
        self._over = threading.Event()
        self._with_poison = threading.Event()
        self._with_poison.set()
        self.open: dict[str, str] = {}
        """Jobs that were accepted and have not been entered yet, with their names."""
        self._answers: dict[str, str] = {}
        self._threads = [
            threading.Thread(target=self._live, args=(random.Random(f"{seed}:{at}"),), name=f"customer {at}")
            for at in range(number)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def leave_out_poison(self) -> None:
        self._with_poison.clear()

    def end(self, timeout_s: float) -> None:
        """Ask for nothing more, and wait for what is under way."""
        self._over.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for job, name in list(self.open.items()):
            self._books.find("outcomes", f"{name} {job}", f"it has not ended {timeout_s:.0f} s after the last fault")
        for thread in self._threads:
            if thread.is_alive():  # also with no job open: it may wait for one to be accepted
                self._books.find("soak", thread.name, f"still at work {timeout_s:.0f} s after the last fault")

    def _live(self, chance: random.Random) -> None:
        with (
            self._books.telling("soak", threading.current_thread().name),
            Assay(self._url, retry=Retry(give_up_after_s=PATIENCE_S, max_delay_s=3.0)) as client,
        ):
            while not self._over.is_set():
                order = draw(chance, self._with_poison.is_set())
                twist = chance.choices(TWISTS, WEIGHTS)[0]
                where = f"{order.name} ({twist})"
                with self._books.telling("outcomes", where):
                    try:
                        self._deal(client, order, twist, chance)
                    except AssayError as error:
                        self._books.find("outcomes", where, f"{type(error).__name__}: {error}")
                self._over.wait(chance.uniform(0.0, 0.6))

    def _deal(self, client: Assay, order: Order, twist: str, chance: random.Random) -> None:
        key = uuid.UUID(int=chance.getrandbits(128)).hex
        job = self._submit(client, order, key)
        self._books.count("items accepted", len(order.items))
        self._books.count("jobs accepted")
        self._books.count(f"twist: {twist}")
        self.open[job.id] = order.name
        where = f"{order.name} {job.id}"
        if twist == "repeat":
            again = self._submit(client, order, key)
            if again.id != job.id:
                self._books.find("idempotency", where, f"a repeat with the same key is another job: {again.id}")
        elif twist == "conflict":
            self._submit_another(client, order, key, where)
        elif twist == "cancel":
            time.sleep(chance.uniform(0.0, 1.5))
            job.cancel()
        elif twist == "pause":
            self._pause(job, chance)
        _wait(job)
        if twist == "retry":
            self._retry(job)
            _wait(job)
        account = _read(job, order)
        self._books.enter(account, order.expected, ends_of(order, twist))
        if order.name == "inference":
            self._compare_answers(order, account, where)
        if twist == "twice":
            time.sleep(chance.uniform(0.5, 3.0))
            if _read(client.job(job.id), order).rows != account.rows:
                self._books.find("outcomes", where, "an ended job was read twice, with different outcomes")
        del self.open[job.id]

    def _submit(self, client: Assay, order: Order, key: str) -> Job:
        options: Any = order.options | {"idempotency_key": key, "metadata": {"order": order.name}}
        items: Any = _each(order.items) if order.is_streamed else order.items
        return client.submit(order.kind, items, order.spec, **options)

    def _submit_another(self, client: Assay, order: Order, key: str, where: str) -> None:
        """The same key for another body must be refused."""
        other = Order(order.name, order.kind, order.items[:-1] or order.items * 2, order.spec, [], order.options)
        try:
            job = self._submit(client, other, key)
        except Conflict:
            return
        self._books.find("idempotency", where, f"another body with the same key was taken, as {job.id}")

    def _pause(self, job: Job, chance: random.Random) -> None:
        try:
            job.pause()
            time.sleep(chance.uniform(0.2, 2.0))
            job.resume()
        except Conflict:  # it has ended by itself
            job.refresh()

    def _retry(self, job: Job) -> None:
        try:
            job.retry()
        except Conflict:
            job.refresh()
        except ConnectionFailed:  # it may have been carried out: not repeated, as a person would not
            self._books.count("retries whose answer was lost")
            job.refresh()

    def _compare_answers(self, order: Order, account: Account, where: str) -> None:
        """At temperature 0, on a CPU, the same question has the same answer, whoever answers it."""
        for item, row in zip(order.items, account.rows, strict=False):
            if row["status"] == "ok":
                answer = row["value"]["answers"][0]
                if self._answers.setdefault(item["query"], answer) != answer:
                    self._books.find("scores", where, f"{item['query']} is {answer!r}, and was something else before")


def ends_of(order: Order, twist: str) -> set[End]:
    """How the job may end. Not as failed: no order says how many of its items may."""
    return {DONE} | ({LATE} if "deadline_s" in order.options else set()) | ({CANCELLED} if twist == "cancel" else set())


def _each(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from items


def _wait(job: Job) -> None:
    """Until it has ended, however long that takes: who waits too long is found at the end."""
    while True:
        try:
            job.wait(30, progress=False, raise_on_failure=False)
            return
        except WaitTimeout:
            continue


def _read(job: Job, order: Order) -> Account:
    rows = [dict(row.raw) for row in job.results()]
    view = job.view
    return Account(job.id, order.name, view.state, view.reason, view.total or 0, view.ok, view.failed, rows)
