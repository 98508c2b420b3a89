"""Worker registry: the live workers of the cluster. Each worker renews its record by heartbeats; the TTL is seconds.

The record is also a lock on the worker's name: two live workers never share a name. Dispatch, recovery and the
dashboard read the registry. The chunks that a worker holds are not covered: they are in the ledger.
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
from tasks.redis_clock import ask_time, parse_time

_SCRIPTS = Path(__file__).with_name("scripts")

#: Seconds after which a process reports its loaded models again.
MODELS_TOLD_S = 3600
#: TTL of a process's report of its policy servers, in seconds.
POLICIES_KEPT_S = 10

State = Literal["starting", "ready", "stopping"]


#: Fields that are not written with the worker's record: set by the script, or reported separately.
_NOT_IN_RECORD = ("beat_at", "policies")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that a worker is pinned to, as the driver sees it."""

    device: str
    """Index or UUID, as in CUDA_VISIBLE_DEVICES."""
    uuid: str
    utilisation: float | None
    """Recent share of time in which the GPU computed; None if the driver does not report it."""
    memory_used_mb: int
    memory_total_mb: int
    name: str = ""
    """Product name."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Record of a worker process. Times are by the clock of the state Redis."""

    name: str
    pool: WorkerPool
    node: str
    host: str
    pid: int
    incarnation: str
    """Id of the process's start: different after every restart."""
    launcher: str
    """Id of the launcher that started it: different after every restart of the launcher."""
    queues: tuple[str, ...] = ()
    concurrency: int = 1
    slot: int | None = None
    devices: tuple[str, ...] = ()
    """Devices that the worker is pinned to, as in CUDA_VISIBLE_DEVICES; empty for a CPU slot."""
    versions: dict[str, str] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    """Models loaded by its process, the most recently used last."""
    weights: dict[str, str] = field(default_factory=dict)
    """Version of the weights by model: a hub revision, a fingerprint of its files, or the version set by a rollout."""
    loading: str = ""
    """The model that is being loaded."""
    policies: tuple[PolicyServer, ...] = ()
    """The policy servers of its process, whether they are connected or not."""
    state: State = "starting"
    active: int = 0
    """Number of Celery tasks that it has taken and not finished."""
    memory_mb: int = 0
    """Resident memory of its processes; shared memory is counted once per process."""
    cpu_s: float = 0.0
    """Total CPU seconds of its processes."""
    busy_s: float = 0.0
    """Total seconds in which at least one task ran: the difference of two readings gives the utilisation."""
    gpus: tuple[Gpu, ...] = ()
    """GPUs of a device worker; empty without a driver."""
    beat_at: float = 0.0

    def as_record(self) -> dict[str, str]:
        return {name: json.dumps(value) for name, value in asdict(self).items() if name not in _NOT_IN_RECORD} | {
            plain: str(getattr(self, plain)) for plain in ("incarnation", "launcher", "host", "pid")
        }

    @classmethod
    def from_record(cls, record: dict[str, str]) -> Self:
        plain = {"incarnation", "launcher", "host"}
        # A worker of a newer version may have fields that this process does not know.
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
        """Heartbeat: write or renew the worker's record. Raises WorkerNameTaken if a different live worker has the
        name."""
        pairs = [text for pair in worker.as_record().items() for text in pair]
        holder = self._announce(args=[worker.name, worker.incarnation, worker.launcher, self._lifetime_ms, *pairs])
        if holder:
            host, pid = holder
            raise WorkerNameTaken(f"{worker.name} is held by a live worker (pid {pid} on {host}).")

    def leave(self, worker: Worker) -> None:
        """Remove the worker's record, unless a newer worker of the same name has replaced it."""
        self._leave(args=[worker.name, worker.incarnation])

    def report_models(
        self, worker: Worker, loaded: Sequence[str], loading: str = "", weights: Mapping[str, str] | None = None
    ) -> None:
        """Report loaded models. Called by the process that loads them, since its parent, which sends the heartbeats,
        does not know them."""
        models = {"loaded": list(loaded), "loading": loading, "weights": dict(weights or {})}
        report = {"incarnation": worker.incarnation} | models
        self._state.set(keys.worker_models(worker.name), json.dumps(report), ex=2 * MODELS_TOLD_S)

    def report_policies(self, worker: Worker, servers: Sequence[PolicyServer]) -> None:
        """Report policy servers. Called by the process that is connected to them."""
        report = {"incarnation": worker.incarnation, "servers": [asdict(server) for server in servers]}
        self._state.set(keys.worker_policies(worker.name), json.dumps(report), ex=POLICIES_KEPT_S)

    def get(self, name: str) -> Worker | None:
        return next(iter(self._read([name])), None)

    def workers(self) -> list[Worker]:
        """Return the live workers, sorted by name."""
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
        ask_time(pipeline)
        *replies, time, offset = pipeline.execute()
        # The TTL of a record is too long when the clock of the Redis server was set back meanwhile.
        since = parse_time(time, offset) - self._lifetime_ms / 1000
        return [
            _with_reports(Worker.from_record(record), *reports)
            for record, reports in zip(replies[::2], replies[1::2], strict=True)
            if record and float(record["beat_at"]) >= since
        ]


def _with_reports(worker: Worker, models: str | None, policies: str | None) -> Worker:
    if (report := _parse_report(worker, models)) is not None:
        weights = report.get("weights", {})  # workers of older versions do not report it
        worker = replace(worker, models=tuple(report["loaded"]), loading=report["loading"], weights=weights)
    if (report := _parse_report(worker, policies)) is not None:
        worker = replace(worker, policies=tuple(PolicyServer(**server) for server in report["servers"]))
    return worker


def _parse_report(worker: Worker, line: str | None) -> dict[str, Any] | None:
    """Return a report of this incarnation of the worker; None if it is missing, or of an earlier incarnation."""
    report: dict[str, Any] = json.loads(line) if line else {}
    return report if report.get("incarnation") == worker.incarnation else None
