"""Who is there to do the work: workers, devices and queues, as the registry and the broker tell."""

from dataclasses import asdict
from typing import Any

from flask import Blueprint

from config.queues import API, CPU
from web.services import services

blueprint = Blueprint("fleet", __name__, url_prefix="/v1")


@blueprint.get("/workers")
def workers() -> dict[str, Any]:
    return {"workers": [asdict(worker) for worker in services().registry.workers()]}


@blueprint.get("/devices")
def devices() -> dict[str, Any]:
    """Device slots; one row per live device worker."""
    rows = [
        {
            "queue": worker.queues[0],
            "node": worker.node,
            "slot": worker.slot,
            "devices": worker.devices,
            "state": worker.state,
            "busy": worker.active > 0,
            "models": worker.models,
        }
        for worker in services().registry.workers()
        if worker.pool == "device"
    ]
    return {"devices": rows}


@blueprint.get("/queues")
def queues() -> dict[str, Any]:
    """The shared queues and one per live device slot, with what waits on the broker and who reads it."""
    readers: dict[str, list[str]] = {API: [], CPU: []}
    for worker in services().registry.workers():
        for queue in worker.queues:
            readers.setdefault(queue, []).append(worker.name)
    rows = [
        {"queue": queue, "waiting": services().celery.queued(queue), "workers": names}
        for queue, names in sorted(readers.items())
    ]
    return {"queues": rows}
