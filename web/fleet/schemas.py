"""Request and response models of `/v1/workers`, `/v1/devices` and `/v1/queues`."""

from typing import Any, Literal

from pydantic import Field

from config.queues import Priority
from web.http.schemas import StrictModel

Mode = Literal["open", "paused", "draining"]


class QueueView(StrictModel):
    queue: str
    waiting: int = Field(description="Number of messages on the broker.")
    workers: list[str]
    mode: Mode


class QueueList(StrictModel):
    queues: list[QueueView]


class GpuView(StrictModel):
    device: str = Field(description="Name as in CUDA_VISIBLE_DEVICES.")
    uuid: str
    utilisation: float | None = Field(description="0 to 1; null where the driver does not report it.")
    memory_used_mb: int
    memory_total_mb: int
    name: str = Field(description="Product name; empty where the driver does not report it.")


class ChunkView(StrictModel):
    """A chunk that a worker is running."""

    queue: str
    chunk: str
    worker: str
    job: str
    kind: str
    priority: Priority
    stage: str
    items: int
    since: float = Field(description="Unix time at which the worker took it.")


class DeviceView(StrictModel):
    queue: str
    node: str
    slot: int | None
    devices: list[str]
    state: str
    busy: bool
    busy_s: float = Field(description="Busy seconds since its worker started.")
    models: list[str] = Field(description="Models loaded in its process.")
    weights: dict[str, str] = Field(
        description="Version of each model's weights: a hub revision, a fingerprint of its files, or, for "
        "weights of a rollout, `<rollout_id>:<version>:<n>`."
    )
    loading: str = Field(description="The model that is loading; empty if no model is.")
    memory_used_mb: int | None = Field(description="Sum over its GPUs; null without a GPU, like `memory_total_mb`.")
    memory_total_mb: int | None
    gpus: list[GpuView]
    running: list[ChunkView]
    mode: Mode


class DeviceList(StrictModel):
    devices: list[DeviceView]


class WorkerList(StrictModel):
    workers: list[dict[str, Any]]
