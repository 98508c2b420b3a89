"""The ledger under random interleavings, lost replies and repeated calls, against a real Redis.

After every step: each item has an owner or an outcome, no item is counted twice, and every waiter waits for a live
claim. At the end both workers complete the remaining work, and every job ends exactly once.
"""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from config import keys
from tasks.jobs.model import ItemError, Result
from tasks.jobs.state.ledger import Chunk, Ledger, Reader, Reopened, compress, expand
from tasks.jobs.state.outcome import settle
from tests.support.redis_server import RedisServer

QUEUES = ("gpu.n.0", "gpu.n.1")
WORKERS = ("gpu.n.0/a/1", "gpu.n.1/b/2")
READERS = [Reader(queue, 1) for queue in QUEUES]
#: Few distinct requests, so that jobs share claims on them.
REQUESTS = 2

workers = st.sampled_from([0, 1])
jobs = st.integers(0, 3)


class LedgerMachine(RuleBasedStateMachine):
    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.state = self.server.client()
        self.state.flushall()
        self.ledger = Ledger(self.state)
        self.jobs: dict[str, int] = {}
        self.held: dict[int, list[Chunk]] = {0: [], 1: []}
        self.begun: dict[str, dict[int, str]] = {}
        self.ended: dict[str, str] = {}
        self.cache: set[str] = set()

    # --- steps ---

    @initialize(sizes=st.lists(st.integers(3, 8), min_size=2, max_size=4), batch=st.integers(1, 3), twice=st.booleans())
    def submit_several(self, sizes: list[int], batch: int, twice: bool) -> None:
        for number, size in enumerate(sizes):
            self.submit(size, batch, 0.4 if number == 2 else 1.0, twice)

    @rule(worker=workers, fails=st.integers(0, 3), lost=st.booleans(), part=st.booleans())
    def work(self, worker: int, fails: int, lost: bool, part: bool) -> None:
        """The worker's next step: take, begin, or commit."""
        if any(chunk.id not in self.begun for chunk in self.held[worker]):
            self.begin(worker, lost)
        elif self.held[worker]:
            self.commit(worker, fails == 0, lost, part)
        else:
            self.ledger.fill("device", READERS)
            self.take(worker, lost)

    def submit(self, total: int, batch: int, share: float, twice: bool) -> None:
        job = f"job{len(self.jobs)}"
        fields: dict[str, object] = {
            "state": "queued", "kind": "k", "spec": "{}", "total": total, "ok": 0, "failed": 0, "cached": 0, "epoch": 0,
            "max_failed_share": share, "deadline_s": "", "keep_s": 1000, "batch_key": "b", "batch_items:run": batch,
            "priority": "normal", "stages": '[{"name":"run","pool":"device","grouped":false}]',
            "first": "run", "pool:run": "device", "grouped:run": 0, "cost:run": 0.5, "pending:run": 0,
        }  # fmt: skip
        assert self.ledger.create(job, f"{job}~1", fields, [("run", f"0-{total - 1}")])
        if twice:  # the reply was lost, so the client repeats the request
            assert not self.ledger.create(job, f"{job}~2", fields, [("run", f"0-{total - 1}")])
        self.jobs[job] = total

    def take(self, worker: int, lost: bool) -> None:
        lease_id = uuid4().hex
        chunks = self.ledger.take(QUEUES[worker], "", WORKERS[worker], QUEUES[worker], lease_id)
        if lost:
            again = self.ledger.take(QUEUES[worker], "", WORKERS[worker], QUEUES[worker], lease_id)
            assert sorted(map(str, again)) == sorted(map(str, chunks)) or not chunks
            chunks = again
        self.held[worker] += chunks

    def begin(self, worker: int, lost: bool) -> None:
        for chunk in self.held[worker]:
            if chunk.id in self.begun:
                continue
            pairs = [(index, _request(index)) for index in chunk.items]
            for _ in range(2 if lost else 1):
                verdicts = self.ledger.begin(WORKERS[worker], chunk.lease_id, 60, [(chunk.id, pairs)])
            self.begun[chunk.id] = {
                index: request for (index, request), verdict in zip(pairs, verdicts, strict=True) if verdict == "r"
            }
            return

    def commit(self, worker: int, fails: bool, lost: bool, part: bool) -> None:
        for chunk in self.held[worker]:
            if chunk.id not in self.begun:
                continue
            run = dict(sorted(self.begun[chunk.id].items())[: 1 if part else None])
            over = not part or len(run) == len(self.begun[chunk.id])
            result = Result(error=ItemError("broken", "no")) if fails else Result(score=1.0)
            for _ in range(2 if lost else 1):
                self.ledger.commit(
                    chunk, QUEUES[worker], 0.1, [settle(i, {}, result) for i in run], list(run.values()), over
                )
            if over:
                self.held[worker].remove(chunk)
                del self.begun[chunk.id]
            else:
                self.begun[chunk.id] = {i: r for i, r in self.begun[chunk.id].items() if i not in run}
            return

    @rule(
        what=st.sampled_from(["die", "die", "doubt", "cancel", "pause", "resume", "unqueue", "retry"]),
        worker=workers,
        number=jobs,
        twice=st.booleans(),
        proven=st.booleans(),
    )
    def disturb(self, what: str, worker: int, number: int, twice: bool, proven: bool) -> None:
        job = f"job{number}"
        if what == "die":
            self.die(worker, proven, twice)
        elif what == "doubt":  # reclaimed while it still works: its late commits must change no outcome
            self.ledger.reclaim(WORKERS[worker], proven=False)
        elif what == "cancel" and number == 3:
            self.ledger.cancel(job)
        elif what in ("pause", "resume"):
            self.ledger.pause(job, what == "pause")
        elif what == "unqueue":
            self.ledger.unqueue(QUEUES[worker])
        elif what == "retry":
            self.retry(job)

    def die(self, worker: int, proven: bool, twice: bool) -> None:
        for _ in range(2 if twice else 1):
            self.ledger.reclaim(WORKERS[worker], proven)
        for chunk in self.held[worker]:
            self.begun.pop(chunk.id, None)
        self.held[worker] = []

    def retry(self, job: str) -> None:
        state = self.state.hget(keys.job(job), "state")
        good = {int(i) for i, o in self.state.hgetall(keys.job_outcomes(job, "0")).items() if '"ok"' in o}
        again = sorted(set(range(self.jobs.get(job, 0))) - good)
        if state in ("done", "failed") and again:
            half = len(again) // 2
            pages = [self.counted(job, page) for page in (again[:half] or again, again[half:])]
            assert self.ledger.reopen(job, pages[0]) >= 0
            assert self.ledger.reopen(job, pages[1]) == len(again) - half
            self.ledger.run_reopened(job, [compress(again)])
            self.ended.pop(job, None)

    def counted(self, job: str, indices: list[int]) -> list[Reopened]:
        outcomes = {int(i): json.loads(o) for i, o in self.state.hgetall(keys.job_outcomes(job, "0")).items()}
        known = {i: Reopened(i, o["status"], (o["error"] or {"type": ""})["type"]) for i, o in outcomes.items()}
        return [known.get(index, Reopened(index)) for index in indices]

    # --- invariants ---

    @invariant()
    def every_item_has_an_owner_or_an_outcome(self) -> None:
        for job, total in self.jobs.items():
            if self.state.hget(keys.job(job), "state") not in ("queued", "running"):
                continue
            owned = set(self._owned(job))
            settled = {int(index) for index in self.state.hkeys(keys.job_outcomes(job, "0"))}
            lost = set(range(total)) - owned - settled
            assert not lost, f"{job}: no chunk or list has the items {compress(lost)}"

    @invariant()
    def no_item_has_two_owners(self) -> None:
        for job in self.jobs:
            owned = Counter(self._owned(job))
            assert max(owned.values(), default=1) == 1, f"{job}: {owned}"

    @invariant()
    def counters_agree_with_outcomes(self) -> None:
        for job, total in self.jobs.items():
            ok, failed = (int(n or 0) for n in self.state.hmget(keys.job(job), ["ok", "failed"]))
            assert ok + failed == self.state.hlen(keys.job_outcomes(job, "0")) <= total
            assert sum(map(int, self.state.hvals(keys.job_reasons(job)))) == failed
            pending = sum(len(expand(e.lstrip("=!"))) for e in self.state.lrange(keys.job_pending(job, "run"), 0, -1))
            assert int(self.state.hget(keys.job(job), "pending:run") or 0) == pending

    @invariant()
    def an_ended_job_keeps_its_state(self) -> None:
        for job in self.jobs:
            state = str(self.state.hget(keys.job(job), "state"))
            if state in ("done", "failed", "cancelled"):
                assert self.ended.setdefault(job, state) == state

    @invariant()
    def every_waiter_waits_for_a_claim_of_an_existing_chunk(self) -> None:
        for key in self.state.keys(keys.waiters("*")):
            owner = self.state.get(keys.claim(key.rsplit(":", 1)[1]))
            assert owner, f"{key} waits for a claim without an owner"
            assert self.state.exists(keys.chunk(owner)), f"{key} waits for a chunk that was deleted"

    @invariant()
    def queues_and_holders_agree_with_the_chunks(self) -> None:
        running = {chunk for queue in QUEUES for chunk in self.state.smembers(keys.running(queue))}
        held = {chunk for holder in WORKERS for chunk in self.state.smembers(keys.held(holder))}
        assert running == held
        assert all(self.state.exists(keys.chunk(chunk)) for chunk in running)

    def teardown(self) -> None:
        """Let both workers run the remaining chunks: every job must end."""
        for job in self.jobs:
            self.ledger.pause(job, False)
        for worker in (0, 1):
            self.die(worker, proven=False, twice=False)
        for _ in range(200):
            self.ledger.fill("device", READERS)
            for worker in (0, 1):
                self.take(worker, lost=False)
                while self.held[worker]:
                    self.begin(worker, lost=False)
                    self.commit(worker, fails=False, lost=False, part=False)
            self.counters_agree_with_outcomes()
            if all(self.state.hget(keys.job(job), "state") not in ("queued", "running") for job in self.jobs):
                break
        else:
            raise AssertionError("a job never ended")
        for job in self.jobs:
            ends = [
                f for _, f in self.state.xrange(keys.job_events(job)) if f["event"] in ("done", "failed", "cancelled")
            ]
            epochs = int(self.state.hget(keys.job(job), "epoch") or 0)
            assert 1 <= len(ends) <= 1 + epochs
        assert self.state.keys(keys.claim("*")) == []
        assert self.state.keys(keys.waiters("*")) == []
        self.state.close()

    def _owned(self, job: str) -> Iterator[int]:
        for chunk in self.state.smembers(keys.job_chunks(job)):
            yield from expand(str(self.state.hget(keys.chunk(chunk), "items") or ""))
        for entry in self.state.lrange(keys.job_pending(job, "run"), 0, -1):
            yield from expand(entry.lstrip("=!"))
        for key in self.state.keys(keys.waiters("*")):
            yield from (int(w.split("|")[2]) for w in self.state.smembers(key) if w.startswith(f"{job}|"))


def _request(index: int) -> str:
    """Items of different jobs have the same few requests; some items have no request, so they share no claim."""
    return f"request{index % REQUESTS}" if index % 4 != 3 else ""


@pytest.mark.parametrize("examples", [40, pytest.param(1500, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_ledger_invariants_hold_under_random_interleavings(redis_server: RedisServer, examples: int) -> None:
    machine: Any = type("Machine", (LedgerMachine,), {"server": redis_server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
