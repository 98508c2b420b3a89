"""Simulation of a rollout: sleeps instead of generating and rewarding; versions, queue and faults are real.

For tests and measurements. Random times are drawn with the prompt's index as seed, so that every run has the same
times.
"""

import asyncio
import heapq
import json
import random
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.jobs.execution.retry_redis import retry_redis
from tasks.jobs.model import Result
from tasks.jobs.stage import Context, Feed, Work
from tasks.rollouts.weight_versions import Version, Versions

#: Seconds between two checks for a new version and for cancellation.
LOOK_S = 0.01


class Simulation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    generate_s: float = Field(0.0, ge=0, le=3600, description="Seconds that the generation of a prompt takes.")
    reward_s: float = Field(0.0, ge=0, le=3600, description="Seconds that a prompt's reward takes; 0: no reward.")
    tail: float = Field(
        0.0, ge=0, le=3, description="Spread of the reward times: sigma of a log-normal with mean `reward_s`."
    )
    at_once: int = Field(8, ge=1, le=500, description="Maximum prompts that a device generates concurrently.")
    tokens: int = Field(4, ge=1, le=100_000, description="Number of tokens of a sample.")


def reward_seconds(spec: Simulation, index: int) -> float:
    if not spec.tail:
        return spec.reward_s
    return spec.reward_s * random.Random(index).lognormvariate(-(spec.tail**2) / 2, spec.tail)


def generate(context: Context, feed: Feed[Any], first: Sequence[Work[Any]], versions: Versions) -> None:
    """Simulate an engine. `first`: prompts that were already taken from the feed."""
    rollout, spec = first[0].spec.rollout, first[0].spec.simulated
    running: list[tuple[float, int, Work[Any], Version]] = []
    order, version, looked_at = count(), Version(rollout), float("-inf")
    given = list(first)
    while not context.is_cancelled():
        now = time.monotonic()
        if now - looked_at > LOOK_S:
            looked_at = now
            if retry_redis(lambda: versions.serial(rollout)) != version.serial:
                version = retry_redis(lambda: versions.current(rollout))
        for work in given or feed.more(spec.at_once - len(running)):
            heapq.heappush(running, (time.monotonic() + spec.generate_s, next(order), work, version))
        given = []
        if not running:
            return
        time.sleep(max(0.0, min(running[0][0] - time.monotonic(), LOOK_S)))
        while running and running[0][0] <= time.monotonic():
            _, _, work, began = heapq.heappop(running)
            feed.done(work, _generated(work, began, version))


def _generated(work: Work[Any], began: Version, ended: Version) -> Result:
    tokens: int = work.spec.simulated.tokens
    goes_on = work.spec.interrupt == "continue" and ended.number != began.number
    early = tokens // 2 if goes_on else tokens
    versions = [[began.number, early], [ended.number, tokens - early]] if goes_on else [[began.number, tokens]]
    sample: Any = {
        "text": json.dumps(work.item.prompt),
        "finish": "stop",
        "token_ids": list(range(tokens)),
        "logprobs": [-0.5] * tokens,
        "versions": versions,
    }
    samples = [sample] * work.spec.sampling.n
    value: Any = {"prompt_ids": [], "samples": samples, "rows": [{}] * len(samples), "seconds": 0.0}
    return Result(value=value)


async def reward(spec: Simulation, work: Work[Any]) -> Result:
    await asyncio.sleep(reward_seconds(spec, work.index))
    rows: Any = [{"score": random.Random(f"{work.index}:{place}").random()} for place in range(work.spec.sampling.n)]
    return Result(value=rows)
