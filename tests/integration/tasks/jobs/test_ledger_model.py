"""The ledger under random interleavings, lost replies, repeated calls, clock steps and lost moments of Redis, against a
real Redis.

Jobs have one stage, two stages, two stages of which the second is grouped, or are stored, with parts that move to
files. Retries may be cut off. After every step: each item has an owner or an outcome, no item is counted twice, and
every waiter waits for a live claim. At the end both workers complete the remaining work, every job ends, and no audit
had to repair anything.
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
from tasks.jobs.state.ledger import PARTS, Chunk, Ledger, Reader, Reopened, Settled, Staged, compress, expand
from tasks.jobs.state.outcome import retry_later, settle
from tasks.redis_clock import read_time
from tests.support.redis_server import RedisServer
from tests.support.rollback import Dump, roll_back, save

QUEUES = ("gpu.n.0", "gpu.n.1")
WORKERS = ("gpu.n.0/a/1", "gpu.n.1/b/2")
READERS = [Reader(queue, 1) for queue in QUEUES]
#: Few distinct requests, so that jobs share claims on them.
REQUESTS = 2
GROUP = 2
PART = 3
#: Stages of a job by layout, and whether each is grouped.
STAGES = {
    "plain": {"run": False},
    "staged": {"run": False, "second": False},
    "grouped": {"run": False, "join": True},
    "stored": {"run": False, PARTS: False},
}
#: Stage after the first, by layout.
NEXT = {"staged": "second", "grouped": "join"}
#: Moments that Redis may go back to.
SNAPSHOTS = 3
HOUR_S = 3600.0

workers = st.sampled_from([0, 1])
jobs = st.integers(0, 4)
layouts = st.sampled_from(["plain", "plain", "staged", "grouped", "stored"])


class LedgerMachine(RuleBasedStateMachine):
    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.state = self.server.client()
        self.state.flushall()
        self.ledger = Ledger(self.state)
        self.jobs: dict[str, int] = {}
        self.layouts: dict[str, str] = {}
        self.held: dict[int, list[Chunk]] = {0: [], 1: []}
        self.begun: dict[tuple[str, str], dict[int, str]] = {}
        self.ended: dict[str, str] = {}
        self.files: dict[str, dict[int, str]] = {}
        self.snapshots: list[tuple[Dump, dict[str, int], dict[str, str]]] = []
        self.state.hset(keys.clock(), "offset", 100 * HOUR_S)  # room for steps back, see `step_clock`

    # --- steps ---

    @initialize(
        sizes=st.lists(st.tuples(st.integers(3, 8), layouts), min_size=2, max_size=4),
        batch=st.integers(1, 3),
        twice=st.booleans(),
    )
    def submit_several(self, sizes: list[tuple[int, str]], batch: int, twice: bool) -> None:
        for number, (size, layout) in enumerate(sizes):
            self.submit(size, layout, batch, 0.4 if number == 2 else 1.0, twice)

    @rule(worker=workers, fails=st.integers(0, 3), lost=st.booleans(), part=st.booleans(), again=st.booleans())
    def work(self, worker: int, fails: int, lost: bool, part: bool, again: bool) -> None:
        """The worker's next step: take, begin, or commit."""
        if any(_name(chunk) not in self.begun for chunk in self.held[worker]):
            self.begin(worker, lost)
        elif self.held[worker]:
            self.commit(worker, fails == 0, lost, part, again)
        else:
            self.ledger.fill("device", READERS)
            self.take(worker, lost)

    @rule(size=st.integers(3, 8), layout=layouts)
    def submit_later(self, size: int, layout: str) -> None:
        if len(self.jobs) < 5:
            self.submit(size, layout, 2, 1.0, twice=False)

    def submit(self, total: int, layout: str, batch: int, share: float, twice: bool) -> None:
        job = f"job{len(self.jobs)}"
        stages = STAGES[layout]
        fields: dict[str, object] = {
            "state": "queued", "kind": "k", "total": total, "ok": 0, "failed": 0, "cached": 0, "epoch": 0,
            "max_failed_share": share, "deadline_s": "", "keep_s": 1000, "batch_key": "b",
            "priority": "normal", "first": "run",
        }  # fmt: skip
        definition = {
            "stages": json.dumps([{"name": n, "pool": "device", "grouped": grouped} for n, grouped in stages.items()])
        }
        for name, grouped in stages.items():
            fields |= {f"pool:{name}": "device", f"grouped:{name}": int(grouped), f"cost:{name}": 0.5}
            fields |= {f"pending:{name}": 0, f"batch_items:{name}": batch}
        if layout == "stored":
            fields |= {"part_items": PART, "merged": 0, "inflight": total, "window_items": 1000}
        for copy in range(2 if twice else 1):  # the reply was lost, so the client repeats the request
            staged = Staged(f"{job}~{copy}{uuid4().hex}", is_grouped=layout == "grouped")
            if layout == "grouped":
                self.ledger.enroll(staged.name, 0, [index - index % GROUP for index in range(total)], 1000)
            if layout == "stored":
                self.state.zadd(keys.staging(), {staged.name: 1e12})
                self.state.set(keys.job_offsets(staged.name), "0" * 30)
            created = self.ledger.create(job, staged, definition, fields, [("run", f"0-{total - 1}")])
            assert created == (copy == 0)
        self.jobs[job], self.layouts[job] = total, layout

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
            if _name(chunk) in self.begun:
                continue
            pairs = [(index, _request(index) if chunk.stage == "run" else "") for index in chunk.items]
            for _ in range(2 if lost else 1):
                verdicts = self.ledger.begin(WORKERS[worker], chunk.lease_id, 60, [(chunk.id, pairs)])
            self.begun[_name(chunk)] = {
                index: request for (index, request), verdict in zip(pairs, verdicts, strict=True) if verdict == "r"
            }
            return

    def commit(self, worker: int, fails: bool, lost: bool, part: bool, again: bool) -> None:
        for chunk in self.held[worker]:
            if _name(chunk) not in self.begun:
                continue
            begun = self.begun[_name(chunk)]
            run = dict(sorted(begun.items())[: 1 if part and chunk.stage != "join" else None])
            over = len(run) == len(begun)
            for _ in range(2 if lost else 1):
                if chunk.stage == PARTS:
                    self.move(chunk, list(run) or list(chunk.items), over)
                else:
                    settled = [self.settled(chunk, index, fails, again and index == min(run)) for index in run]
                    self.ledger.commit(chunk, QUEUES[worker], 0.1, settled, list(run.values()), over)
            if over:
                self.held[worker].remove(chunk)
                del self.begun[_name(chunk)]
            else:
                self.begun[_name(chunk)] = {i: r for i, r in begun.items() if i not in run}
            return

    def settled(self, chunk: Chunk, index: int, fails: bool, again: bool) -> Settled:
        layout = self.layouts.get(chunk.job_id, "")
        onward = NEXT.get(layout, "") if chunk.stage == "run" else ""
        again = again and chunk.stage != "join"
        if fails or again:  # only to its group does a failed item pass on
            failure = Result(error=ItemError("broken", "no"), next=onward if layout == "grouped" else "")
            settled = settle(index, {}, failure)
            return retry_later(settled, 0.0, 1) if again else settled
        return settle(index, {}, Result(value={}, next=onward) if onward else Result(score=1.0))

    def move(self, chunk: Chunk, parts: list[int], over: bool) -> None:
        for part in parts:
            file = f"{part}.{uuid4().hex}"
            before = str(self.state.hget(keys.job_parts(chunk.job_id), str(part)) or "").removeprefix("~")
            found = {int(i): o for i, o in self.state.hgetall(keys.job_outcomes(chunk.job_id, str(part))).items()}
            self.files[file] = self.files.get(before, {}) | found
            self.ledger.move(chunk, part, file, over and part == parts[-1])

    @rule(
        action=st.sampled_from(
            ["die", "die", "doubt", "cancel", "pause", "resume", "unqueue", "retry", "compare", "park"]
        ),
        worker=workers,
        number=jobs,
        twice=st.booleans(),
        proven=st.booleans(),
        cut=st.booleans(),
    )
    def disturb(self, action: str, worker: int, number: int, twice: bool, proven: bool, cut: bool) -> None:
        job = f"job{number}"
        if action == "die":
            self.die(worker, proven, twice)
        elif action == "doubt":  # reclaimed while it still works: its late commits must change no outcome
            self.ledger.reclaim(WORKERS[worker], proven=False)
        elif action == "cancel" and number == 3:
            self.ledger.cancel(job)
        elif action in ("pause", "resume"):
            self.ledger.pause(job, action == "pause")
        elif action == "unqueue":
            self.ledger.unqueue(QUEUES[worker])
        elif action == "retry":
            self.retry(job, cut)
        elif action == "compare":
            self.compare(worker)
        elif action == "park":
            self.park(worker, twice)

    @rule(step_s=st.sampled_from([0.0, 0.0, -HOUR_S, HOUR_S, -1.0]))
    def tick(self, step_s: float) -> None:
        """A round of recovery, after a step of the clock."""
        self.step_clock(step_s)
        now = read_time(self.state)
        self.state.hset(keys.tick(), "last", now - 1)
        assert self.ledger.tick(0.9, 4, 5, 3600) is not None
        assert read_time(self.state) >= now, "the ledger's time went back"

    def step_clock(self, step_s: float) -> None:
        """The ledger's time is the server's time and an offset. A step of the server's clock cannot be made here, so
        the offset steps, and after a step back the server's time as last seen is ahead, as it would be."""
        self.state.hincrbyfloat(keys.clock(), "offset", step_s)
        seconds, _ = self.state.time()
        self.state.hset(keys.clock(), "wall", seconds + 1 - min(0.0, step_s))

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots = [*self.snapshots, (save(self.server.url), dict(self.jobs), dict(self.ended))][-SNAPSHOTS:]

    @rule(earlier=st.integers(0, SNAPSHOTS - 1))
    def lose_a_moment(self, earlier: int) -> None:
        """Redis loses everything since a snapshot. Workers and files do not."""
        if not self.snapshots:
            return
        self.snapshots = self.snapshots[: max(1, len(self.snapshots) - earlier)]
        dump, jobs, ended = self.snapshots[-1]
        self.jobs, self.ended = dict(jobs), dict(ended)
        roll_back(self.server.url, dump)

    def compare(self, worker: int) -> None:
        """What the thread of a worker process does, see `held_chunks.py`."""
        running = {_name(chunk) for chunk in self.held[worker]}
        self.ledger.return_chunks(
            WORKERS[worker], [each for each in self.ledger.held(WORKERS[worker]) if each not in running]
        )

    def park(self, worker: int, twice: bool) -> None:
        """The storage is unavailable: a chunk ends, and its stage rests."""
        for chunk in self.held[worker][:1]:
            for _ in range(2 if twice else 1):
                self.ledger.park(chunk.job_id, chunk.stage, 0.0, [chunk])
            self.held[worker].remove(chunk)
            self.begun.pop(_name(chunk), None)

    def die(self, worker: int, proven: bool, twice: bool) -> None:
        for _ in range(2 if twice else 1):
            self.ledger.reclaim(WORKERS[worker], proven)
        for chunk in self.held[worker]:
            self.begun.pop(_name(chunk), None)
        self.held[worker] = []

    def retry(self, job: str, cut: bool = False) -> None:
        """Retry a job, or continue its retry. `cut`: the process dies after the first page."""
        state = self.state.hget(keys.job(job), "state")
        good = {index for index, outcome in self.outcomes(job).items() if '"ok"' in outcome}
        again = set(range(self.jobs.get(job, 0))) - good
        if self.layouts.get(job) == "grouped":
            again = {i for i in range(self.jobs.get(job, 0)) if {i - i % GROUP, i - i % GROUP + 1} & again}
        rows = sorted(again)
        if state in ("done", "failed", "cancelled", "reopening") and rows:
            half = len(rows) // 2
            pages = [self.counted(job, page) for page in (rows[:half] or rows, rows[half:])]
            assert self.ledger.reopen(job, pages[0]) >= 0
            self.ended.pop(job, None)
            if cut:
                return
            assert self.ledger.reopen(job, pages[1]) == len(rows) - half
            self.ledger.run_reopened(job, [compress(rows)])

    def counted(self, job: str, indices: list[int]) -> list[Reopened]:
        outcomes = {index: json.loads(outcome) for index, outcome in self.outcomes(job).items()}
        known = {i: Reopened(i, o["status"], (o["error"] or {"type": ""})["type"]) for i, o in outcomes.items()}
        return [known.get(index, Reopened(index)) for index in indices]

    def outcomes(self, job: str) -> dict[int, str]:
        """Outcomes in files and in Redis. An empty outcome hides the outcome in the file."""
        found: dict[int, str] = {}
        for file in self.state.hvals(keys.job_parts(job)):
            found |= self.files[file.removeprefix("~")]
        for part in range(3):
            found |= {int(i): o for i, o in self.state.hgetall(keys.job_outcomes(job, str(part))).items()}
        return {index: outcome for index, outcome in found.items() if outcome}

    # --- invariants ---

    @invariant()
    def every_item_has_an_owner_or_an_outcome(self) -> None:
        for job, total in self.jobs.items():
            if self.state.hget(keys.job(job), "state") not in ("queued", "running", "finishing"):
                continue
            lost = set(range(total)) - set(self._owned(job)) - set(self.outcomes(job))
            assert not lost, f"{job}: no chunk or list has the items {compress(lost)}"

    @invariant()
    def no_item_has_two_owners(self) -> None:
        for job in self.jobs:
            if self.state.hget(keys.job(job), "state") in ("queued", "running", "finishing"):
                owned = Counter(self._owned(job))
                assert max(owned.values(), default=1) == 1, f"{job}: {owned}"

    @invariant()
    def counters_agree_with_outcomes(self) -> None:
        for job, total in self.jobs.items():
            ok, failed = (int(n or 0) for n in self.state.hmget(keys.job(job), ["ok", "failed"]))
            assert ok + failed == len(self.outcomes(job)) <= total
            assert sum(map(int, self.state.hvals(keys.job_reasons(job)))) == failed
            for stage in STAGES[self.layouts[job]]:
                entries = self.state.lrange(keys.job_pending(job, stage), 0, -1)
                pending = sum(len(expand(entry.lstrip("=!"))) for entry in entries)
                assert int(self.state.hget(keys.job(job), f"pending:{stage}") or 0) == pending

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

    @invariant()
    def no_audit_is_needed(self) -> None:
        for job in self.jobs:
            assert self.ledger.audit(job).repaired == {}

    def teardown(self) -> None:
        """Let both workers run the remaining chunks: every job must end."""
        for worker in (0, 1):
            self.compare(worker)
        self.step_clock(HOUR_S)
        for job in self.ledger.audit().interrupted:
            self.retry(job)
        for job in self.jobs:
            self.ledger.pause(job, False)
        for _ in range(200):
            self.tick(0.0)
            self.ledger.fill("device", READERS)
            for worker in (0, 1):
                self.take(worker, lost=False)
                while self.held[worker]:
                    self.begin(worker, lost=False)
                    self.commit(worker, fails=False, lost=False, part=False, again=False)
            self.counters_agree_with_outcomes()
            if all(self.state.hget(keys.job(job), "state") in ("done", "failed", "cancelled") for job in self.jobs):
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
        """Items that are in a chunk, pending, waiting for a claim, parked, or waiting for their group."""
        for chunk in self.state.smembers(keys.job_chunks(job)):
            stage, items = self.state.hmget(keys.chunk(chunk), ["stage", "items"])
            if stage != PARTS:
                yield from (i for i in expand(str(items)) if not self._is_passed(job, str(stage), i))
        for stage in ("run", "second", "join"):
            for entry in self.state.lrange(keys.job_pending(job, stage), 0, -1):
                yield from expand(entry.lstrip("=!"))
        for key in self.state.keys(keys.waiters("*")):
            yield from (int(w.split("|")[2]) for w in self.state.smembers(key) if self._is_away(job, w))
        yield from (int(m.split("|")[2]) for m in self.state.zrange(keys.parked(), 0, -1) if self._is_away(job, m))
        for index in map(int, self.state.hkeys(keys.job_carry(job))):
            if int(self.state.hget(keys.job_awaited(job), str(index - index % GROUP)) or 0) > 0:
                yield index

    def _is_away(self, job: str, member: str) -> bool:
        """Whether this member of `parked` or `waiters` is an item of the job that is still away."""
        name, stage, index = member.split("|")
        return name == job and bool(self.state.hexists(keys.job_away(job), f"{stage}|{index}"))

    def _is_passed(self, job: str, stage: str, index: int) -> bool:
        """Whether a chunk has counted or parked the item, although it is still listed in the chunk."""
        counted = self.state.getbit(keys.job_passed(job, stage, "0"), index) == 1
        return counted or bool(self.state.hexists(keys.job_away(job), f"{stage}|{index}"))


def _name(chunk: Chunk) -> tuple[str, str]:
    return chunk.id, chunk.lease_id


def _request(index: int) -> str:
    """Items of different jobs have the same few requests; some items have no request, so they share no claim."""
    return f"request{index % REQUESTS}" if index % 4 != 3 else ""


@pytest.mark.parametrize("examples", [40, pytest.param(1500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
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
