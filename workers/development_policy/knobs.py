"""The knobs: how slow and how broken the development policy is. On the command line, or over `PUT /knobs`."""

import random
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

Fate = Literal["ok", "error", "hang", "wedge", "garbage", "shape", "drop"]
FATES: tuple[Fate, ...] = ("error", "hang", "wedge", "garbage", "shape", "drop")
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True))
class Knobs:
    latency_ms: Annotated[float, Field(ge=0)] = 0.0
    """Milliseconds an inference takes; nothing else is done meanwhile, `/healthz` included."""
    share_error: Share = 0.0
    """Share of calls answered with a traceback and the end of the connection."""
    error: Literal["ValueError", "RuntimeError"] = "RuntimeError"
    """What those raise: the first blames the request, the second the server."""
    share_hang: Share = 0.0
    """Share of calls never answered; other clients are."""
    share_wedge: Share = 0.0
    """Share of calls after which the server does nothing at all any more, but keeps its port."""
    share_garbage: Share = 0.0
    """Share of calls answered with what is no message."""
    share_shape: Share = 0.0
    """Share of calls answered with actions of another shape."""
    share_drop: Share = 0.0
    """Share of calls whose connection is cut."""
    greeting: Literal["yes", "none", "garbage"] = "yes"
    """What a client gets when it connects: the metadata, nothing, or what is no message."""
    horizon: Annotated[int, Field(ge=1, le=1000)] = 10
    """Steps of a plan."""
    version: str = "1"
    """Of the policy, in the metadata; empty: left out, as by the reference server."""
    key: str = ""
    """The API key that clients must bring; empty: any or none."""
    hold: bool = False
    """Whether calls wait until this is off again."""
    seed: int = 0
    """Of the fates: the n-th call since it was set meets the same one."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if sum(share for _, share in self.shares) > 1 + 1e-9:
            raise ValueError("the shares of what happens to a call are more than 1 together")
        return self

    @cached_property
    def shares(self) -> tuple[tuple[Fate, float], ...]:
        """What may happen to a call but `ok`."""
        return tuple((fate, share) for fate in FATES if (share := getattr(self, f"share_{fate}")))


def draw_fate(knobs: Knobs, chance: random.Random) -> Fate:
    point = chance.random()
    for fate, share in knobs.shares:
        point -= share
        if point < 0:
            return fate
    return "ok"
