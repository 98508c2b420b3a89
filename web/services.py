"""What the views share: built once by the factory, reached through `services()`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flask import current_app
from redis import Redis

from config.rewards import Rewards
from config.settings import Settings
from tasks.apis.board import Board
from tasks.app import AssayCelery
from tasks.benchmarks.runs import Runs
from tasks.jobs.backlog import Backlog
from tasks.jobs.core import JobCore
from tasks.jobs.doing import Running
from tasks.jobs.listing import Jobs
from tasks.jobs.submit import Door
from tasks.jobs.waiting import Waiting
from tasks.registry import Registry
from tasks.rollouts.rollouts import Rollouts
from web.hub import Hub
from web.quotas import Quotas
from web.seats import Seats
from web.tokens import Tokens

if TYPE_CHECKING:  # their modules reach the services
    from web.metrics.collector import Collector
    from web.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    state: Redis
    cache: Redis
    celery: AssayCelery
    registry: Registry
    core: JobCore
    jobs: Jobs
    backlog: Backlog
    waiting: Waiting
    running: Running
    traffic: "Traffic"
    collector: "Collector"
    """What `/metrics` tells."""
    board: Board
    tokens: Tokens | None
    """None: nobody is asked for a token."""
    quotas: Quotas
    hub: Hub
    seats: Seats
    rewards: Rewards
    reward_parts: Mapping[str, Sequence[str]]
    """The parts of each named reward."""
    reward_door: Door
    """By which the jobs of trainers come in."""
    rollouts: Rollouts
    runs: Runs


def services() -> Services:
    return cast(Services, current_app.extensions["assay"])
