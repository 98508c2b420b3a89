"""Who is there to do the work: workers, devices and queues; and how to hold them back."""

from dataclasses import asdict
from typing import Any, Literal

from flask import Blueprint, Response

from config import keys
from config.queues import SHARED, UnknownQueue, slot_of
from web.answers import answer
from web.description import described
from web.schemas import Devices, DeviceView, Queues, QueueView, Workers
from web.services import services

blueprint = Blueprint("fleet", __name__, url_prefix="/v1")

Action = Literal["pause", "resume", "drain"]


@blueprint.get("/workers")
@described("List the workers that are there.", {200: Workers})
def workers() -> Response:
    return answer({"workers": [asdict(worker) for worker in services().registry.workers()]})


@blueprint.get("/devices")
@described("List device slots: one for each live device worker.", {200: Devices})
def devices() -> Response:
    return answer({"devices": device_rows()})


@blueprint.get("/queues")
@described("List the shared queues and one per device slot: what waits on the broker, and who reads it.", {200: Queues})
def queues() -> Response:
    return answer({"queues": queue_rows()})


@blueprint.post("/queues/<queue>/pause")
@described(
    "Give a queue no more work. What runs is finished, what waits goes to others.", {200: QueueView}, errors=(404,)
)
def pause_queue(queue: str) -> Response:
    return _change(queue, "pause", queue_rows())


@blueprint.post("/queues/<queue>/resume")
@described("Give a queue work again.", {200: QueueView}, errors=(404,))
def resume_queue(queue: str) -> Response:
    return _change(queue, "resume", queue_rows())


@blueprint.post("/queues/<queue>/drain")
@described("Let a queue run empty, to take its workers away.", {200: QueueView}, errors=(404,))
def drain_queue(queue: str) -> Response:
    return _change(queue, "drain", queue_rows())


@blueprint.post("/devices/<queue>/pause")
@described("Give a device, named by its queue, no more work.", {200: DeviceView}, errors=(404,))
def pause_device(queue: str) -> Response:
    return _change(queue, "pause", device_rows())


@blueprint.post("/devices/<queue>/resume")
@described("Give a device work again.", {200: DeviceView}, errors=(404,))
def resume_device(queue: str) -> Response:
    return _change(queue, "resume", device_rows())


@blueprint.post("/devices/<queue>/drain")
@described("Let a device run empty.", {200: DeviceView}, errors=(404,))
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
    for each in services().running.read(names) if names else ():
        running[each.queue].append(asdict(each))
    rows = [row | {"running": running[str(row["queue"])]} for row in rows]
    modes = _modes(names)
    return [row | {"mode": modes[str(row["queue"])]} for row in rows]


def queue_rows() -> list[dict[str, Any]]:
    """Queues that somebody reads, and those that are held back: they are there to be resumed."""
    readers: dict[str, list[str]] = {queue: [] for queue in SHARED}
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
        raise UnknownQueue(f"There is no {queue!r} here now; GET /v1/queues and /v1/devices list what there is.")
    core = services().core
    if action == "resume":
        core.resume_queue(queue)
    else:
        core.pause_queue(queue, draining=action == "drain")
    return answer(row | {"mode": {"pause": "paused", "drain": "draining", "resume": "open"}[action]})


def _short(model: str) -> str:
    """A model's name; where its folder lies is nobody's business."""
    return model.rpartition("/")[2] if model.startswith("/") else model
