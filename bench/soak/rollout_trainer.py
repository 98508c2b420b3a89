"""Trainer of the soak: runs rollouts sequentially; its consumers take, acknowledge and return samples.

Some consumers disappear while they hold a leased batch.
"""

import random
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from assay import Assay
from assay.errors import AssayError, Conflict, NotFound
from assay.retry import Retry
from assay.rollouts import FullyAsyncRollouter, MessageQueueClient, ParameterSynchronizer

from bench.soak.findings import Accounting, Delivery, wrong_deliveries
from bench.soak.lost_moments import LostMoments
from bench.soak.system_under_test import MODEL
from tasks.jobs.states import CANCELLED, DONE, ENDED

SAMPLES_EACH = 2
GROUPS = (40, 150)
BATCH = 8
COMMON: dict[str, Any] = {"n": SAMPLES_EACH, "train_batch_size": BATCH, "max_queue_size": 64}
SIMULATED: dict[str, Any] = {"simulated": {"generate_s": 0.05, "reward_s": 0.02, "tail": 1.0, "at_once": 4}}
#: Rollout specs: the simulated engine; the same with versions and a staleness limit, so that stale samples are dropped;
#: and a tiny model with a rule as its reward.
SPECS: dict[str, dict[str, Any]] = {
    "simulated": COMMON | SIMULATED,
    "versioned": COMMON | SIMULATED | {"max_staleness": 2},
    "model": COMMON
    | {"model": MODEL, "chat": "never", "sampling": {"max_new_tokens": 6, "temperature": 1.0}}
    | {"reward": {"scorers": [{"name": "numeric_match"}]}},
}
#: Lease of a batch in seconds.
LEASE_S = 20.0
#: Seconds without a sample after which the trainer announces the next version, because generation may wait for it.
STARVED_S = 3.0


class Trainer:
    """Runs rollouts sequentially, in a thread."""

    def __init__(self, url: str, accounting: Accounting, lost: LostMoments, seed: int) -> None:
        self._url, self._accounting, self._lost = url, accounting, lost
        self._chance = random.Random(f"{seed}:trainer")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer")
        self.open = ""

    def start(self) -> None:
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        self._over.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._accounting.add_findings(
                "rollouts", self.open, f"the rollout has not ended {timeout_s:.0f} s after the last fault"
            )

    def _run(self) -> None:
        with (
            self._accounting.recording("soak", "trainer"),
            Assay(self._url, retry=Retry(give_up_after_s=150.0, max_delay_s=3.0)) as client,
        ):
            while not self._over.is_set():
                try:
                    self._train(client)
                except AssayError as error:
                    self._accounting.add_findings("rollouts", self.open, f"{type(error).__name__}: {error}")
                except Exception:  # noqa: BLE001  # recorded as a finding, which makes the run fail
                    self._accounting.add_findings("rollouts", self.open, traceback.format_exc()[-600:])
                self._over.wait(1.0)

    def _train(self, client: Assay) -> None:
        chance, groups = self._chance, self._chance.randint(*GROUPS)
        name = chance.choice(list(SPECS))
        key = uuid.UUID(int=chance.getrandbits(128)).hex
        prompts = [{"prompt": f"{n}+{n}=", "reference": str(2 * n)} for n in range(7)]
        began_at, moments = time.time(), self._lost.number
        rollouter = FullyAsyncRollouter(
            SPECS[name] | {"total_rollout_steps": groups}, prompts, client=client, idempotency_key=key
        )
        accepted_at = time.time()
        self.open = rollouter.rollout
        self._accounting.count("rollouts accepted")
        self._accounting.count(f"rollouts: {name}")
        versions = Versions(rollouter, chance) if name == "versioned" else None
        try:
            acknowledged, was_ended, view = self._consume(client, rollouter, versions)
        except NotFound:
            if not self._lost.has(began_at, accepted_at):
                raise
            self._accounting.count("rollouts that Redis lost")
            self._accounting.count("rollouts ended")
            return
        job, is_undone = view["job"], self._lost.number != moments
        delivery = Delivery(self.open, SAMPLES_EACH, job["ok"], acknowledged, view["statistics"], is_undone)
        where = f"{name} {self.open}"
        self._accounting.add_findings("rollouts", where, *wrong_deliveries(delivery))
        if job["failed"]:
            self._accounting.add_findings("rollouts", where, f"{job['failed']} groups failed: {job['reasons']}")
        self._accounting.add_findings("rollouts", where, *wrong_end(job, groups, was_ended))
        self._accounting.count("rollouts ended")
        self._accounting.count("samples acknowledged", len(acknowledged))
        self._accounting.count("samples dropped as stale", view["statistics"]["dropped_stale_samples"])
        self.open = ""

    def _consume(
        self, client: Assay, rollouter: FullyAsyncRollouter, versions: "Versions | None"
    ) -> tuple[list[str], bool, dict[str, Any]]:
        """Take samples until the rollout has ended. Returns the acknowledged ids, whether the trainer ended it, and its
        last view."""
        chance, names, was_ended = self._chance, ("one", "two"), False
        moments = self._lost.number
        queues = {name: self._consumer(client, name) for name in names}
        acknowledged: list[str] = []
        while True:
            queue = queues[name := chance.choice(names)]
            version = versions.current if versions else None
            taken = queue.get_samples(chance.randint(1, BATCH), 0.5, version) or queue.get_samples(1, 0.0, version)
            if not taken:
                view = rollouter.view()
                if view["job"]["state"] in ENDED and _is_empty(view):
                    return acknowledged, was_ended, view
                if self._lost.number != moments:  # Redis may have lost a resumption
                    moments = self._lost.number
                    with suppress(Conflict):
                        rollouter.resume_rollout()
                if self._over.is_set():
                    was_ended = True
                    rollouter.end()  # queued samples can still be taken
                elif versions:
                    versions.announce_if_starved()
                continue
            draw = chance.random()
            if draw < 0.05:  # the consumer disappears; a new one takes its name
                queues[name] = self._consumer(client, name)
            elif draw < 0.1:
                queue.give_back()
            elif queue.acknowledge():
                acknowledged += taken[1]["ids"]
                if versions:
                    versions.use(len(taken[0]))
            else:
                self._accounting.count("batches whose lease had expired")
            if chance.random() < 0.02:
                with suppress(Conflict):  # the rollout has ended already
                    rollouter.pause_rollout(timeout=5)
                    rollouter.resume_rollout()

    def _consumer(self, client: Assay, name: str) -> MessageQueueClient:
        return MessageQueueClient(self.open, consumer=name, lease_s=LEASE_S, client=client)


class Versions:
    """Versions of the trainer: it announces one after each used batch, and sometimes skips some, so that samples become
    stale."""

    def __init__(self, rollouter: FullyAsyncRollouter, chance: random.Random) -> None:
        self._synchronizer = ParameterSynchronizer(rollouter)
        self._chance = chance
        self._used, self._last_sample_at = 0, time.monotonic()
        self.current = 0

    def use(self, samples: int) -> None:
        self._used, self._last_sample_at = self._used + samples, time.monotonic()
        if self._used >= BATCH:
            self._announce()

    def announce_if_starved(self) -> None:
        if time.monotonic() - self._last_sample_at > STARVED_S:
            self._announce()

    def _announce(self) -> None:
        self._used, self._last_sample_at = 0, time.monotonic()
        number = self.current + self._chance.choice([1, 1, 1, 1, 3])
        try:
            is_synced = self._synchronizer.sync_weights(number, b"weights", timeout=60)
        except Conflict:  # the rollout is over
            return
        self.current = number if is_synced else self._synchronizer.current_version


def wrong_end(job: Mapping[str, Any], groups: int, was_ended: bool) -> list[str]:
    """Check that a rollout ended as `done` with all groups, or as `cancelled` if the trainer ended it."""
    if job["state"] == DONE:
        return [] if job["ok"] == groups else [f"{groups} groups were requested, but {job['ok']} are ok"]
    if job["state"] == CANCELLED and was_ended:
        return []
    return [f"the rollout ended as {job['state']!r} ({job['reason'] or 'no reason'}), which was not requested"]


def _is_empty(view: dict[str, Any]) -> bool:
    figures = view["statistics"]
    return not (figures["queue_size"] or figures["leased_samples"])
