"""A rollout without a model: it sleeps instead of generating and rewarding; versions, queue and faults are real.

For tests and measurements. The seconds of each prompt are drawn by its index, so that they are the same in every run.
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
from tasks.rollouts.versions import Version, Versions

#: Seconds between two looks at whether there is a new version, or the work is still wanted.
LOOK_S = 0.01


class Simulation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    generate_s: float = Field(0.0, ge=0, le=3600, description="Seconds that one prompt takes.")
    reward_s: float = Field(0.0, ge=0, le=3600, description="Seconds that its reward takes; 0: it has none.")
    tail: float = Field(0.0, ge=0, le=3, description="How uneven rewards are: sigma of a log-normal of the same mean.")
    at_once: int = Field(8, ge=1, le=500, description="Prompts that a device generates side by side.")
    tokens: int = Field(4, ge=1, le=100_000, description="Tokens of a sample.")


def reward_seconds(spec: Simulation, index: int) -> float:
    if not spec.tail:
        return spec.reward_s
    return spec.reward_s * random.Random(index).lognormvariate(-(spec.tail**2) / 2, spec.tail)


def generate(context: Context, feed: Feed[Any], first: Sequence[Work[Any]], versions: Versions) -> None:
    """Stand for an engine: `first` are the prompts that were taken from the feed already."""
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
