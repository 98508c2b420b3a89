"""The sample queue under random interleavings, lost replies, lapsed leases and repeated calls, against a real Redis.

After every step each sample is in a single place: waiting, leased by a consumer, acknowledged once, or dropped as too
stale; and no batch ever holds a sample that is staler than the queue allows.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from config import keys
from config.settings import Settings
from tests.support.fleet import Fleet
from tests.support.redis_server import RedisServer
from tests.support.rollouts import Stand

MOST_STALE, ROOM = 2, 20
CONSUMERS = ("a", "b", "")


class QueueMachine(RuleBasedStateMachine):
    server: RedisServer
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        with self.server.client() as client:
            client.flushall()
        self.fleet = Fleet(Settings(redis_url=self.server.url, node="node1", data_dir=self.folder), self.folder / "j")
        self.stand = Stand(self.fleet, max_staleness=MOST_STALE, max_queue_size=ROOM)
        self.numbers = count()
        self.version = 0
        self.versions: dict[int, int] = {}
        self.held: dict[str, tuple[str, list[int]]] = {}
        """Batch -> its consumer and samples, as far as a consumer knows."""
        self.acknowledged: list[int] = []
        self.dropped = 0

    def teardown(self) -> None:
        self.fleet.close()

    # --- steps ---

    @rule(samples=st.integers(1, 6), behind=st.integers(0, 4), group=st.booleans(), twice=st.booleans())
    def put(self, samples: int, behind: int, group: bool, twice: bool) -> None:
        numbers, token = [next(self.numbers) for _ in range(samples)], uuid4().hex
        version, before = max(0, self.version - behind), self.stand.told("queue_size")
        is_put = self.stand.put(*numbers, version=version, group=group, token=token)
        assert is_put == (before + samples <= ROOM)
        if is_put:
            self.versions |= dict.fromkeys(numbers, version)
            if twice:  # the reply was lost
                assert self.stand.put(*numbers, version=version, group=group, token=token)

    @rule(
        wanted=st.integers(1, 8), least=st.booleans(), whole=st.booleans(), consumer=st.sampled_from(CONSUMERS),
        ahead=st.integers(0, 1), lost=st.booleans(), acknowledges=st.booleans(),
    )  # fmt: skip
    def get(
        self, wanted: int, least: bool, whole: bool, consumer: str, ahead: int, lost: bool, acknowledges: bool
    ) -> None:
        self.version += ahead
        last = next((batch for batch, (who, _) in self.held.items() if who == consumer), "") if acknowledges else ""
        for _ in range(2 if lost else 1):  # the first reply was lost, so the consumer repeats the call
            batch = self.stand.get(
                wanted, least=1 if least else None, whole=whole, consumer=consumer, version=self.version,
                acknowledge=last,
            )  # fmt: skip
            self.dropped += batch.dropped
            if last in self.held:
                assert batch.acknowledged == len(self.held[last][1])
                self.acknowledged += self.held.pop(last)[1]
            elif last:
                assert batch.acknowledged == 0
            if consumer:
                self.held = {name: each for name, each in self.held.items() if each[0] != consumer}
            samples = self.stand.samples(batch) if batch.id else []
            assert all(self.version - self.versions[sample] <= MOST_STALE for sample in samples)
            if batch.id:
                assert len(samples) == batch.samples >= (1 if least else wanted)
                assert whole or len(samples) <= wanted
                self.held[batch.id] = (consumer, samples)

    @rule(choice=st.integers(0, 3), times=st.integers(1, 2))
    def acknowledge(self, choice: int, times: int) -> None:
        if self.held:
            batch = sorted(self.held)[choice % len(self.held)]
            samples = self.held.pop(batch)[1]
            told = [self.stand.rollouts.acknowledge(self.stand.id, batch) for _ in range(times)]
            assert told == [len(samples), 0][:times]
            self.acknowledged += samples

    @rule(choice=st.integers(0, 3))
    def give_back(self, choice: int) -> None:
        if self.held:
            batch = sorted(self.held)[choice % len(self.held)]
            assert self.stand.rollouts.queue.give_back(self.stand.id, batch) == len(self.held.pop(batch)[1])
            assert self.stand.rollouts.acknowledge(self.stand.id, batch) == -1

    @rule(choice=st.integers(0, 3))
    def lapse(self, choice: int) -> None:
        if self.held:
            batch = sorted(self.held)[choice % len(self.held)]
            del self.held[batch]
            self.fleet.core.state.zadd(keys.rollout_leases(self.stand.id), {batch: 0})
            assert self.stand.rollouts.acknowledge(self.stand.id, batch) == -1

    # --- invariants ---

    @invariant()
    def every_sample_is_in_one_place(self) -> None:
        told = self.stand.rollouts.statistics(self.stand.id)
        held = [sample for _, samples in self.held.values() for sample in samples]
        assert len(set(held)) == len(held)
        assert len(set(self.acknowledged)) == len(self.acknowledged)
        assert not set(held) & set(self.acknowledged)
        assert (told["leased_samples"], told["total_consumed"]) == (len(held), len(self.acknowledged))
        assert told["dropped_samples"] == self.dropped
        waiting = len(self.versions) - len(held) - len(self.acknowledged) - self.dropped
        assert told["queue_size"] == waiting
        members = self.fleet.core.state.zrange(keys.rollout_queue(self.stand.id), 0, -1)
        sizes = [[int(place) for place in str(member).split(":")[1].split("-")] for member in members]
        assert sum(last - first + 1 for first, last in sizes) == waiting


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("queue")) as server:
        yield server


def test_samples_are_neither_lost_nor_given_twice_nor_stale(server: RedisServer, tmp_path: Path) -> None:
    machine = type("Machine", (QueueMachine,), {"server": server, "folder": tmp_path})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40, stateful_step_count=40, deadline=None, derandomize=True, database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip
