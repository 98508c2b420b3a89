"""Objects that all views share: built once by the application factory, reached through `services()`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flask import current_app
from redis import Redis

from config.rewards import Rewards
from config.settings import Settings
from tasks.app import AssayCelery
from tasks.deployment_benchmarks.runs import Runs
from tasks.jobs.core import JobCore
from tasks.jobs.queries.listing import JobListing
from tasks.jobs.queries.queue_depth import QueueDepthReader
from tasks.jobs.queries.running_chunks import RunningChunks
from tasks.jobs.state.storage_faults import StorageStatus
from tasks.jobs.submission.backlog import Backlog
from tasks.jobs.submission.memory_budget import MemoryBudget
from tasks.providers.profile_status import ProfileStatuses
from tasks.rollouts.rollouts import Rollouts
from tasks.worker_registry import Registry
from web.http.auth.tokens import Tokens
from web.http.long_requests import LongRequests
from web.http.quotas import Quotas
from web.jobs.event_hub import EventHub

if TYPE_CHECKING:  # these modules import this module
    from web.http.request_metrics import RequestMetrics
    from web.metrics.collector import Collector


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    state: Redis
    cache: Redis
    celery: AssayCelery
    registry: Registry
    storage_status: StorageStatus
    core: JobCore
    jobs: JobListing
    backlog: Backlog
    memory_budget: MemoryBudget
    queue_depth: QueueDepthReader
    running_chunks: RunningChunks
    request_metrics: "RequestMetrics"
    metrics_collector: "Collector"
    """Source of the metrics at `/metrics`."""
    profile_statuses: ProfileStatuses
    tokens: Tokens | None
    """None: no request needs a token."""
    quotas: Quotas
    event_hub: EventHub
    long_requests: LongRequests
    rewards: Rewards
    reward_parts: Mapping[str, Sequence[str]]
    """Names of the parts that each named reward returns."""
    rollouts: Rollouts
    runs: Runs


def services() -> Services:
    return cast(Services, current_app.extensions["assay"])
