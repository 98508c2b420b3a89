"""A trainer: rollouts one after the other, and consumers that take samples, acknowledge them, give some back, and
sometimes die with a batch in their hands."""

import random
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from assay import Assay
from assay.errors import AssayError, Conflict
from assay.retry import Retry
from assay.rollouts import FullyAsyncRollouter, MessageQueueClient, ParameterSynchronizer

from bench.soak.books import Books, Delivery, wrong_deliveries
from bench.soak.system import MODEL

SAMPLES_EACH = 2
GROUPS = (40, 150)
BATCH = 8
COMMON: dict[str, Any] = {"n": SAMPLES_EACH, "train_batch_size": BATCH, "max_queue_size": 64}
SIMULATED: dict[str, Any] = {"simulated": {"generate_s": 0.05, "reward_s": 0.02, "tail": 1.0, "at_once": 4}}
#: What is generated, and how: by the simulated engine; the same with versions, of which stale samples are dropped; by a
#: tiny model, with a rule for its reward.
SPECS: dict[str, dict[str, Any]] = {
    "simulated": COMMON | SIMULATED,
    "versioned": COMMON | SIMULATED | {"max_staleness": 2},
    "model": COMMON | {"model": MODEL, "chat": "never", "sampling": {"max_new_tokens": 6, "temperature": 1.0}}
    | {"reward": {"scorers": [{"name": "numeric_match"}]}},
}  # fmt: skip
#: Seconds that a batch belongs to its consumer.
LEASE_S = 20.0
#: Seconds without a sample after which the next version is announced: generation may wait for it.
STARVED_S = 3.0


class Trainer:
    """One rollout after the other."""

    def __init__(self, url: str, books: Books, seed: int) -> None:
        self._url, self._books = url, books
        self._chance = random.Random(f"{seed}:trainer")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._live, name="trainer")
        self.open = ""

    def start(self) -> None:
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        self._over.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._books.find("rollouts", self.open, f"it is not over {timeout_s:.0f} s after the last fault")

    def _live(self) -> None:
        with (
            self._books.telling("soak", "trainer"),
            Assay(self._url, retry=Retry(give_up_after_s=150.0, max_delay_s=3.0)) as client,
        ):
            while not self._over.is_set():
                try:
                    self._train(client)
                except AssayError as error:
                    self._books.find("rollouts", self.open, f"{type(error).__name__}: {error}")
                except Exception:  # noqa: BLE001  # told in the report, which fails for it
                    self._books.find("rollouts", self.open, traceback.format_exc()[-600:])
                self._over.wait(1.0)

    def _train(self, client: Assay) -> None:
        chance, groups = self._chance, self._chance.randint(*GROUPS)
        name = chance.choice(list(SPECS))
        key = uuid.UUID(int=chance.getrandbits(128)).hex
        prompts = [{"prompt": f"{n}+{n}=", "reference": str(2 * n)} for n in range(7)]
        rollouter = FullyAsyncRollouter(
            SPECS[name] | {"total_rollout_steps": groups}, prompts, client=client, idempotency_key=key
        )
        self.open = rollouter.rollout
        self._books.count("rollouts accepted")
        self._books.count(f"rollouts: {name}")
        versions = Versions(rollouter, chance) if name == "versioned" else None
        acknowledged, was_ended = self._consume(client, rollouter, versions)
        told = rollouter.view()
        job = told["job"]
        delivery = Delivery(self.open, SAMPLES_EACH, job["ok"], acknowledged, told["statistics"])
        where = f"{name} {self.open}"
        self._books.find("rollouts", where, *wrong_deliveries(delivery))
        if job["failed"]:
            self._books.find("rollouts", where, f"{job['failed']} groups failed: {job['reasons']}")
        self._books.find("rollouts", where, *wrong_end(job, groups, was_ended))
        self._books.count("rollouts ended")
        self._books.count("samples acknowledged", len(acknowledged))
        self._books.count("samples dropped as stale", told["statistics"]["dropped_stale_samples"])
        self.open = ""

    def _consume(
        self, client: Assay, rollouter: FullyAsyncRollouter, versions: "Versions | None"
    ) -> tuple[list[str], bool]:
        """Take until all is over; ids of the samples that were acknowledged, and whether we ended the rollout."""
        chance, names, was_ended = self._chance, ("one", "two"), False
        queues = {name: self._consumer(client, name) for name in names}
        acknowledged: list[str] = []
        while True:
            queue = queues[name := chance.choice(names)]
            version = versions.current if versions else None
            taken = queue.get_samples(chance.randint(1, BATCH), 0.5, version) or queue.get_samples(1, 0.0, version)
            if not taken:
                told = rollouter.view()
                if told["job"]["state"] in ("done", "failed", "cancelled") and _is_empty(told):
                    return acknowledged, was_ended
                if self._over.is_set():
                    was_ended = True
                    rollouter.end()  # samples that wait can still be had
                elif versions:
                    versions.starve()
                continue
            fate = chance.random()
            if fate < 0.05:  # it dies, and is started again under the same name
                queues[name] = self._consumer(client, name)
            elif fate < 0.1:
                queue.give_back()
            elif queue.acknowledge():
                acknowledged += taken[1]["ids"]
                if versions:
                    versions.use(len(taken[0]))
            else:
                self._books.count("batches whose lease was over")
            if chance.random() < 0.02:
                with suppress(Conflict):  # it is done already
                    rollouter.pause_rollout(timeout=5)
                    rollouter.resume_rollout()

    def _consumer(self, client: Assay, name: str) -> MessageQueueClient:
        return MessageQueueClient(self.open, consumer=name, lease_s=LEASE_S, client=client)


class Versions:
    """A trainer's versions: one for each batch it has used, sometimes several at once, so that samples become stale."""

    def __init__(self, rollouter: FullyAsyncRollouter, chance: random.Random) -> None:
        self._synchronizer = ParameterSynchronizer(rollouter)
        self._chance = chance
        self._used, self._fed_at = 0, time.monotonic()
        self.current = 0

    def use(self, samples: int) -> None:
        self._used, self._fed_at = self._used + samples, time.monotonic()
        if self._used >= BATCH:
            self._announce()

    def starve(self) -> None:
        if time.monotonic() - self._fed_at > STARVED_S:
            self._announce()

    def _announce(self) -> None:
        self._used, self._fed_at = 0, time.monotonic()
        number = self.current + self._chance.choice([1, 1, 1, 1, 3])
        try:
            is_synced = self._synchronizer.sync_weights(number, b"weights", timeout=60)
        except Conflict:  # the rollout is over
            return
        self.current = number if is_synced else self._synchronizer.current_version


def wrong_end(job: Mapping[str, Any], groups: int, was_ended: bool) -> list[str]:
    """A rollout ends as done with all its groups, or cancelled if we ended it."""
    if job["state"] == "done":
        return [] if job["ok"] == groups else [f"{groups} groups were asked for, {job['ok']} are ok"]
    if job["state"] == "cancelled" and was_ended:
        return []
    return [f"it ended as {job['state']!r} ({job['reason'] or 'no reason'}), which nobody asked for"]


def _is_empty(told: dict[str, Any]) -> bool:
    figures = told["statistics"]
    return not (figures["queue_size"] or figures["leased_samples"])
