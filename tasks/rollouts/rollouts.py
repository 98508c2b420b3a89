"""Control interface of rollouts: create, pause, announce new weights, read statistics. Samples go through
`sample_queue.py`."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast
from uuid import uuid4

from config import keys
from config.queues import Priority
from tasks import lua
from tasks.app import AssayCelery
from tasks.errors import Conflict, InvalidRequest, StorageUnavailable, UnknownJob
from tasks.jobs.core import JobCore
from tasks.jobs.model import JobHead
from tasks.jobs.state.storage import NewFile, weights_path
from tasks.redis_clock import ask_time, parse_time
from tasks.rollouts.kind import Rollout
from tasks.rollouts.metrics import Counts, Figures, batch_figures, statistics
from tasks.rollouts.model import RolloutSpec
from tasks.rollouts.sample_queue import SCRIPTS, Batch, SampleQueue, Wish
from tasks.rollouts.task import send_word
from tasks.rollouts.weight_versions import SyncStatus, Versions

#: Number of outcomes of prompts that are kept; the samples themselves are in the queue.
KEPT_ITEMS = 1000


@dataclass(frozen=True, slots=True)
class Held:
    is_held: bool
    generating: int
    """Chunks that are still running: the pause is complete when the number is 0."""

    @property
    def holds(self) -> bool:
        return self.is_held and self.generating == 0


class Rollouts:
    def __init__(self, core: JobCore, app: AssayCelery) -> None:
        self._core = core
        self._app = app
        self._state = core.state
        self.versions = Versions(core.state)
        self.queue = SampleQueue(core.state, core.values())
        self._open, self._hold, self._renew = (
            core.state.register_script(lua.load(SCRIPTS / f"{name}.lua")) for name in ("open", "hold", "renew")
        )

    def create(
        self,
        spec: RolloutSpec,
        prompts: Iterable[bytes],
        metadata: dict[str, Any],
        priority: Priority = "normal",
        key: str | None = None,
        token: str = "",
        slots: int | None = None,
    ) -> str:
        """Create a rollout and return its id. Idempotent by `key`: a repeated key returns the first rollout's id.
        Prompts are lines of JSON."""
        lines = iter(prompts)
        first = next(lines, None)
        if spec.generates and first is None:
            raise InvalidRequest("prompts: are missing: a rollout with a `model` needs prompts.", field="prompts")
        if not spec.generates and first is not None:
            raise InvalidRequest("prompts: need a `model` that generates from them.", field="prompts")
        head = JobHead(
            kind=Rollout.name,
            spec=spec.model_dump(mode="json", exclude_none=True, exclude={"rollout"}),
            priority=priority,
            cache="off",
            metadata=metadata,
            slots=slots,
        )
        given = chain([first], lines) if first is not None else ()
        rollout = self._core.submitter.loop(head, given, spec.seed if spec.shuffle else None, KEPT_ITEMS, key, token)
        if spec.generates:
            kind = cast(Rollout, self._core.kinds[Rollout.name])
            model = kind.model(spec.model_copy(update={"rollout": rollout})) if spec.model else None
            self.versions.open(rollout, model, spec.sync, spec.version)
        bounds = [part for pair in spec.bounds().items() for part in pair]
        self._fill(int(self._open(keys=[], args=[rollout, spec.version, *bounds])))
        return rollout

    def hold(self, rollout: str, wish: bool | None = None) -> Held:
        """Pause generation (True), resume it (False), or only return its state (None)."""
        held, running, begun = self._hold(keys=[], args=[rollout, "" if wish is None else int(wish)])
        if wish is False:
            self._core.dispatcher.fill("device")
        else:
            self._fill(begun)
        return Held(bool(held), int(running))

    def get(self, rollout: str, wish: Wish, waited_s: float = 0.0) -> Batch:
        batch = self.queue.get(rollout, wish, waited_s)
        self._fill(batch.begun)
        return batch

    def acknowledge(self, rollout: str, batch: str) -> int:
        number, begun = self.queue.acknowledge(rollout, batch)
        self._fill(begun)
        return number

    # --- versions ---

    def new_weights(self, rollout: str, number: int) -> tuple[str, NewFile]:
        """Create a file in the storage for the weights of this version, to be written and then announced. Returns its
        URI and the file."""
        self._core.storage.require_reach(worker.host for worker in self._core.registry.workers())
        path = weights_path(rollout, number, uuid4().hex[:8])
        return self._core.storage.uri(path), self._core.storage.create(path)

    def announce(self, rollout: str, number: int, uri: str, sha256: str, owned: bool = False) -> SyncStatus:
        """Announce new weights: devices load them before they generate further tokens. Raises Conflict when the version
        is not new, or the rollout does not generate."""
        if not self.generates(rollout):
            raise Conflict("The rollout generates nothing: name your version when you take samples.")
        devices = [worker.queues[0] for worker in self._core.registry.workers() if worker.pool == "device"]
        version = self.versions.announce(rollout, number, uri, sha256, devices, owned=owned)
        if self._field(rollout, "simulated") == "1":  # a simulation has no weights to load
            for device in devices:
                self.versions.confirm(rollout, device, version, 0.0)
        else:
            send_word(self._app, rollout, devices)
        self._fill(int(self._renew(keys=[], args=[rollout])))
        self._sweep(rollout)
        return self.versions.status(rollout)

    def sync_status(self, rollout: str) -> SyncStatus:
        status = self.versions.status(rollout)
        if status.state != "syncing":
            self._sweep(rollout)
        return status

    def _sweep(self, rollout: str) -> None:
        for uri in self.versions.sweep(rollout):
            if path := self._core.storage.path_of(uri):
                try:
                    self._core.storage.delete_file(path)
                except StorageUnavailable:  # the file is removed together with the rollout
                    return

    def delete_weights(self, uri: str) -> None:
        """Delete a file of the storage that was created for weights and never announced."""
        if path := self._core.storage.path_of(uri):
            self._core.storage.delete_file(path)

    # --- statistics ---

    def generates(self, rollout: str) -> bool:
        return self._field(rollout, "generates") == "1"

    def _field(self, rollout: str, name: str) -> str | None:
        return cast("str | None", self._state.hget(keys.rollout(rollout), name))

    def statistics(self, rollout: str) -> dict[str, Any]:
        pipeline = self._state.pipeline(transaction=False)
        pipeline.hgetall(keys.rollout(rollout))
        pipeline.hmget(keys.job(rollout), ["total", "ok", "failed"])
        pipeline.lrange(keys.rollout_recent(rollout), 0, -1)
        pipeline.lrange(keys.rollout_times(rollout), 0, -1)
        ask_time(pipeline)
        fields, job, recent, times, *time_replies = pipeline.execute()
        if not fields or job[0] is None:
            raise UnknownJob(f"There is no rollout {rollout!r}; it may have expired.")
        sync = self.versions.status(rollout) if fields.get("generates") == "1" else None
        total, ok, failed = (int(each) for each in job)
        return statistics(Counts(fields, total, ok, failed, recent, times, sync, parse_time(*time_replies)))

    def recent(self, rollout: str) -> list[Figures]:
        """Return the freshness of the last batches, oldest first."""
        batches = cast(list[str], self._state.lrange(keys.rollout_recent(rollout), 0, -1))
        return [batch_figures(json.loads(batch)) for batch in reversed(batches)]

    def _fill(self, begun: int) -> None:
        if begun:
            self._core.dispatcher.fill("device")
