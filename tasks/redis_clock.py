"""Time of the state Redis as the Lua scripts read it for due times and leases: it never goes back (`clock.lua`)."""

from typing import Any

from redis import Redis
from redis.client import Pipeline

from config import keys


def ask_time(pipeline: Pipeline) -> None:
    """Add the two commands whose replies `parse_time` takes."""
    pipeline.time()
    pipeline.hget(keys.clock(), "offset")


def parse_time(time: Any, offset: Any) -> float:
    """Return the time in seconds from the replies to the commands of `ask_time`."""
    seconds, microseconds = time
    return float(seconds) + float(microseconds) / 1e6 + float(offset or 0)


def read_time(state: Redis) -> float:
    """Return the time in seconds."""
    pipeline = state.pipeline(transaction=False)
    ask_time(pipeline)
    return parse_time(*pipeline.execute())
