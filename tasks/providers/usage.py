"""Usage and cost of API calls per profile, job or bearer token. `scripts/include/usage.lua` counts each answer once."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from redis import Redis

from config import keys

_COST = "cost:"


@dataclass(frozen=True, slots=True)
class Usage:
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: dict[str, float] = field(default_factory=dict)
    """Cost by currency, of calls through profiles with prices."""


def today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def of_profile(state: Redis, profile: str, day: str) -> Usage:
    return as_usage(cast(dict[str, str], state.hgetall(keys.api_usage(profile, day))))


def of_token(state: Redis, name: str, day: str) -> Usage:
    return as_usage(cast(dict[str, str], state.hgetall(keys.token_usage(name, day))))


def as_usage(record: Mapping[str, str]) -> Usage:
    return Usage(
        int(record.get("calls", 0)),
        int(record.get("prompt_tokens", 0)),
        int(record.get("completion_tokens", 0)),
        {name.removeprefix(_COST): int(value) / 1e9 for name, value in record.items() if name.startswith(_COST)},
    )
