"""`/v1/workers`, `/v1/devices` and `/v1/queues`: list them, and pause, resume or drain a queue."""

from dataclasses import asdict
from typing import Any, Literal

from flask import Blueprint, Response

from config import keys
from config.pools import SHARED_QUEUES
from config.queues import UnknownQueue, slot_of
from web.fleet.schemas import DeviceList, DeviceView, QueueList, QueueView, WorkerList
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.services import services

blueprint = Blueprint("fleet", __name__, url_prefix="/v1")

Action = Literal["pause", "resume", "drain"]


@blueprint.get("/workers")
@described("List the live workers.", {200: WorkerList})
def workers() -> Response:
    return json_response({"workers": [asdict(worker) for worker in services().registry.workers()]})


@blueprint.get("/devices")
@described("List the device slots, a slot for each live device worker.", {200: DeviceList})
def devices() -> Response:
    return json_response({"devices": device_rows()})


@blueprint.get("/queues")
@described(
    "List the shared queues and the queue of each device slot, with waiting messages and workers.", {200: QueueList}
)
def queues() -> Response:
    return json_response({"queues": queue_rows()})


@blueprint.post("/queues/<queue>/pause")
@described(
    "Pause a queue: it gets no more work. Running chunks finish, waiting chunks go to other queues.",
    {200: QueueView},
    errors=(404,),
)
def pause_queue(queue: str) -> Response:
    return _change(queue, "pause", queue_rows())


@blueprint.post("/queues/<queue>/resume")
@described("Resume a queue: it gets work again.", {200: QueueView}, errors=(404,))
def resume_queue(queue: str) -> Response:
    return _change(queue, "resume", queue_rows())


@blueprint.post("/queues/<queue>/drain")
@described(
    "Drain a queue: it gets no more work, and its workers can be removed when it is empty.",
    {200: QueueView},
    errors=(404,),
)
def drain_queue(queue: str) -> Response:
    return _change(queue, "drain", queue_rows())


@blueprint.post("/devices/<queue>/pause")
@described("Pause a device, named by its queue: it gets no more work.", {200: DeviceView}, errors=(404,))
def pause_device(queue: str) -> Response:
    return _change(queue, "pause", device_rows())


@blueprint.post("/devices/<queue>/resume")
@described("Resume a device: it gets work again.", {200: DeviceView}, errors=(404,))
def resume_device(queue: str) -> Response:
    return _change(queue, "resume", device_rows())


@blueprint.post("/devices/<queue>/drain")
@described(
    "Drain a device: it gets no more work, and its worker can be removed when it is idle.",
    {200: DeviceView},
    errors=(404,),
)
def drain_device(queue: str) -> Response:
    return _change(queue, "drain", device_rows())


def device_rows() -> list[dict[str, Any]]:
    rows = [
        {
            "queue": worker.queues[0],
            "node": worker.node,
            "slot": worker.slot,
            "devices": worker.devices,
            "state": worker.state,
            "busy": worker.active > 0,
            "busy_s": worker.busy_s,
            "models": [_short(model) for model in worker.models],
            "weights": {_short(model): version for model, version in worker.weights.items()},
            "loading": _short(worker.loading),
            "memory_used_mb": sum(gpu.memory_used_mb for gpu in worker.gpus) if worker.gpus else None,
            "memory_total_mb": sum(gpu.memory_total_mb for gpu in worker.gpus) if worker.gpus else None,
            "gpus": [asdict(gpu) for gpu in worker.gpus],
        }
        for worker in services().registry.workers()
        if worker.pool == "device"
    ]
    names = [str(row["queue"]) for row in rows]
    running: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for each in services().running_chunks.read(names) if names else ():
        row = asdict(each)
        row["job"] = row.pop("job_id")
        running[each.queue].append(row)
    rows = [row | {"running": running[str(row["queue"])]} for row in rows]
    modes = _modes(names)
    return [row | {"mode": modes[str(row["queue"])]} for row in rows]


def queue_rows() -> list[dict[str, Any]]:
    """List the queues that a worker reads, and the paused or draining queues, so that they can be resumed."""
    readers: dict[str, list[str]] = {queue: [] for queue in SHARED_QUEUES}
    for worker in services().registry.workers():
        for queue in worker.queues:
            readers.setdefault(queue, []).append(worker.name)
    modes = _modes(sorted(readers.keys() | {str(queue) for queue in services().state.smembers(keys.queues())}))
    return [
        {"queue": queue, "waiting": services().celery.queued(queue), "workers": readers.get(queue, []), "mode": mode}
        for queue, mode in modes.items()
        if queue in readers or mode != "open"
    ]


def _modes(names: list[Any]) -> dict[str, str]:
    if not names:
        return {}
    modes = services().state.mget([keys.queue_mode(name) for name in names])
    return {name: str(mode or "open") for name, mode in zip(names, modes, strict=True)}


def _change(queue: str, action: Action, rows: list[dict[str, Any]]) -> Response:
    slot_of(queue)
    row = next((row for row in rows if row["queue"] == queue), None)
    if row is None:
        raise UnknownQueue(f"No worker reads the queue {queue!r} now; GET /v1/queues and /v1/devices list the queues.")
    core = services().core
    if action == "resume":
        core.resume_queue(queue)
    else:
        core.pause_queue(queue, draining=action == "drain")
    return json_response(row | {"mode": {"pause": "paused", "drain": "draining", "resume": "open"}[action]})


def _short(model: str) -> str:
    """Return the model's name without its folder, which clients must not see."""
    return model.rpartition("/")[2] if model.startswith("/") else model
