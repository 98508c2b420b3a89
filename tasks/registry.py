"""Who is there: every worker announces itself with a heartbeat that lapses within seconds.

The record is the lock on the worker's name too: two live workers never share one.
Dispatch, recovery and the dashboard read it; what a worker does with its jobs is not here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

from redis import Redis

from config import keys
from config.pools import WorkerPool
from tasks import lua
from tasks.episodes.policy_servers import PolicyServer
from tasks.errors import WorkerNameTaken

_SCRIPTS = Path(__file__).with_name("scripts")

#: Seconds after which a process tells again which models it holds.
MODELS_TOLD_S = 3600
#: Seconds for which what a process told of its policy servers is taken to be true.
POLICIES_KEPT_S = 10

State = Literal["starting", "ready", "stopping"]


#: Fields that are no part of a worker's own record.
_TOLD_APART = ("beat_at", "policies")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that a worker is pinned to, as the driver sees it."""

    device: str
    """As in CUDA_VISIBLE_DEVICES: an index or a UUID."""
    uuid: str
    utilisation: float | None
    """Share of the last moment in which it computed; None where the driver does not say."""
    memory_used_mb: int
    memory_total_mb: int
    name: str = ""
    """Which product it is."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process as others see it. Times are the state Redis's clock."""

    name: str
    pool: WorkerPool
    node: str
    host: str
    pid: int
    incarnation: str
    """New at every start of the process."""
    launcher: str
    """The launcher that started it; new at every start of the launcher."""
    queues: tuple[str, ...] = ()
    concurrency: int = 1
    slot: int | None = None
    devices: tuple[str, ...] = ()
    """What the worker is pinned to, as in CUDA_VISIBLE_DEVICES; empty for a CPU slot."""
    versions: dict[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    """What its process holds, last used last."""
    weights: dict[str, str] = field(default_factory=dict)
    """By model, the version of its weights: a hub revision, a fingerprint of its files, or what a rollout put there."""
    loading: str = ""
    """The model that is being loaded."""
    policies: tuple[PolicyServer, ...] = ()
    """The policy servers that its process uses, or would if they were there."""
    state: State = "starting"
    active: int = 0
    """Tasks that it has taken and not ended."""
    memory_mb: int = 0
    """Resident memory of its processes; what they share is counted for each."""
    cpu_s: float = 0.0
    """CPU seconds of its processes so far."""
    busy_s: float = 0.0
    """Seconds so far in which at least one task ran: two readings tell the share."""
    gpus: tuple[Gpu, ...] = ()
    """Of a device worker with GPUs; none where there is no driver."""
    beat_at: float = 0.0

    def as_record(self) -> dict[str, str]:
        return {name: json.dumps(value) for name, value in asdict(self).items() if name not in _TOLD_APART} | {
            plain: str(getattr(self, plain)) for plain in ("incarnation", "launcher", "host", "pid")
        }

    @classmethod
    def from_record(cls, record: dict[str, str]) -> Self:
        plain = {"incarnation", "launcher", "host"}
        # A newer worker may say more than this process knows.
        known = {each.name for each in fields(cls)} - {"policies"}
        values: dict[str, Any] = {k: v if k in plain else json.loads(v) for k, v in record.items() if k in known}
        for name in ("queues", "devices", "models"):
            values[name] = tuple(values[name])
        known = {each.name for each in fields(Gpu)}
        values["gpus"] = tuple(Gpu(**{k: v for k, v in gpu.items() if k in known}) for gpu in values.get("gpus", ()))
        return cls(**values)


class Registry:
    def __init__(self, state: Redis, lifetime_s: float) -> None:
        self._state = state
        self._lifetime_ms = int(lifetime_s * 1000)
        self._announce = state.register_script(lua.load(_SCRIPTS / "announce_worker.lua"))
        self._leave = state.register_script(lua.load(_SCRIPTS / "remove_worker.lua"))

    def announce(self, worker: Worker) -> None:
        """Write or renew the worker's record. Raises WorkerNameTaken when another live worker has the name."""
        pairs = [text for pair in worker.as_record().items() for text in pair]
        holder = self._announce(args=[worker.name, worker.incarnation, worker.launcher, self._lifetime_ms, *pairs])
        if holder:
            host, pid = holder
            raise WorkerNameTaken(f"{worker.name} is held by a live worker (pid {pid} on {host}).")

    def leave(self, worker: Worker) -> None:
        """Take the record away, unless a newer worker of the same name has written its own."""
        self._leave(args=[worker.name, worker.incarnation])

    def tell_models(
        self, worker: Worker, loaded: Sequence[str], loading: str = "", weights: Mapping[str, str] | None = None
    ) -> None:
        """Said by the process that holds them; its parent, which beats, cannot know."""
        held = {"loaded": list(loaded), "loading": loading, "weights": dict(weights or {})}
        told = {"incarnation": worker.incarnation} | held
        self._state.set(keys.worker_models(worker.name), json.dumps(told), ex=2 * MODELS_TOLD_S)

    def tell_policies(self, worker: Worker, servers: Sequence[PolicyServer]) -> None:
        """Said by the process that is connected to them."""
        told = {"incarnation": worker.incarnation, "servers": [asdict(server) for server in servers]}
        self._state.set(keys.worker_policies(worker.name), json.dumps(told), ex=POLICIES_KEPT_S)

    def get(self, name: str) -> Worker | None:
        return next(iter(self._read([name])), None)

    def workers(self) -> list[Worker]:
        """The live ones, by name."""
        names = sorted(cast(set[str], self._state.smembers(keys.workers())))
        found = self._read(names)
        if lapsed := set(names) - {worker.name for worker in found}:
            self._state.srem(keys.workers(), *lapsed)
        return found

    def _read(self, names: Sequence[str]) -> list[Worker]:
        pipeline = self._state.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(keys.worker(name))
            pipeline.mget(keys.worker_models(name), keys.worker_policies(name))
        replies = pipeline.execute()
        return [
            _with_told(Worker.from_record(record), *told)
            for record, told in zip(replies[::2], replies[1::2], strict=True)
            if record
        ]


def _with_told(worker: Worker, models: str | None, policies: str | None) -> Worker:
    if (told := _told_by(worker, models)) is not None:
        weights = told.get("weights", {})  # an older worker does not say
        worker = replace(worker, models=tuple(told["loaded"]), loading=told["loading"], weights=weights)
    if (told := _told_by(worker, policies)) is not None:
        worker = replace(worker, policies=tuple(PolicyServer(**server) for server in told["servers"]))
    return worker


def _told_by(worker: Worker, line: str | None) -> dict[str, Any] | None:
    """None for what a process said that is gone."""
    told: dict[str, Any] = json.loads(line) if line else {}
    return told if told.get("incarnation") == worker.incarnation else None
