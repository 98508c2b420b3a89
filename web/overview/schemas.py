"""Request and response models of `/v1/overview`."""

from typing import Any

from pydantic import Field

from web.cache.schemas import CacheSize
from web.fleet.schemas import DeviceView, QueueView
from web.http.schemas import StrictModel
from web.jobs.schemas import JobView
from web.profiles.schemas import ProfileView


class QueueOverview(QueueView):
    chunks: int = Field(description="Chunks that are dispatched and not taken.")
    items: int = Field(description="Items in the waiting chunks.")
    oldest_s: float | None = Field(description="Age of the oldest waiting chunk in seconds.")
    running: int = Field(description="Chunks that are running.")
    rate: float = Field(description="Throughput of its workers in the last seconds, in items per second.")


class PoolOverview(StrictModel):
    pool: str
    items: int = Field(description="Items that are not in a chunk yet.")
    jobs: int = Field(description="Jobs with items that are not in a chunk yet.")
    oldest_s: float | None = Field(description="Age of the oldest waiting job in seconds.")


class DeviceOverview(DeviceView):
    rate: float


class PolicyOverview(StrictModel):
    total_clients: int
    connected: int
    busy: int


class CallLatency(StrictModel):
    """Latency percentiles in milliseconds, over every call since the state Redis was set up."""

    p50: float | None
    p95: float | None


class ProfileOverview(ProfileView):
    latency_ms: CallLatency | None
    refused_429: int = Field(description="Number of 429 responses since the state Redis was set up.")


class RecentJobs(StrictModel):
    """Statistics of the newest jobs, up to 200."""

    jobs: int
    states: dict[str, int]
    items: int = Field(description="Items with an outcome.")
    failed: int
    reasons: dict[str, int] = Field(description="Failed items by error type, the most frequent type first.")
    hits: int = Field(description="Items that came from the cache.")
    calls_saved: int = Field(description="Items from the cache in jobs that call outside APIs.")


class OverviewView(StrictModel):
    """Snapshot of the whole system."""

    at: float
    ready: bool
    missing: list[str]
    notes: list[str]
    active: int = Field(description="Number of jobs that have not ended, jobs of benchmarks included.")
    rate: float = Field(description="Total throughput of the workers, in items per second.")
    queues: list[QueueOverview]
    pools: list[PoolOverview]
    devices: list[DeviceOverview]
    workers: list[dict[str, Any]]
    policies: PolicyOverview
    cache: CacheSize
    recent: RecentJobs
    profiles: list[ProfileOverview]
    jobs: list[JobView] = Field(
        description="Active jobs, then the newest jobs, without the jobs that a benchmark submits."
    )
