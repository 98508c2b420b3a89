"""What the views share: built once by the factory, reached through `services()`."""

from dataclasses import dataclass
from typing import cast

from flask import current_app
from redis import Redis

from config.settings import Settings
from tasks.app import AssayCelery
from tasks.registry import Registry


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    state: Redis
    cache: Redis
    celery: AssayCelery
    registry: Registry


def services() -> Services:
    return cast(Services, current_app.extensions["assay"])
