"""Knobs of the development policy: its latency and its faults. Set on the command line, or by `PUT /knobs`."""

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
    """Duration of an inference in ms, during which the server handles no other request, not even `/healthz`."""
    share_error: Share = 0.0
    """Share of calls answered with a traceback and the end of the connection."""
    error: Literal["ValueError", "RuntimeError"] = "RuntimeError"
    """Error that `share_error` raises: ValueError blames the request, RuntimeError the server."""
    share_hang: Share = 0.0
    """Share of calls that are never answered, while other clients get answers."""
    share_wedge: Share = 0.0
    """Share of calls after which the whole server hangs, but keeps its port."""
    share_garbage: Share = 0.0
    """Share of calls answered with an invalid message."""
    share_shape: Share = 0.0
    """Share of calls answered with actions of a wrong shape."""
    share_drop: Share = 0.0
    """Share of calls whose connection is cut."""
    greeting: Literal["yes", "none", "garbage"] = "yes"
    """First message of a connection: the metadata, nothing, or an invalid message."""
    horizon: Annotated[int, Field(ge=1, le=1000)] = 10
    """Steps of a plan."""
    version: str = "1"
    """Version of the policy in the metadata; empty: left out, as by the reference server."""
    key: str = ""
    """The API key that clients must send; empty: no check."""
    hold: bool = False
    """Whether calls wait until this knob is off again."""
    seed: int = 0
    """Seed of the faults: the n-th call after the seed was set always gets the same fault."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if sum(share for _, share in self.shares) > 1 + 1e-9:
            raise ValueError("the shares of faults add up to more than 1")
        return self

    @cached_property
    def shares(self) -> tuple[tuple[Fate, float], ...]:
        """Possible faults of a call, with their shares; the rest is `ok`."""
        return tuple((fate, share) for fate in FATES if (share := getattr(self, f"share_{fate}")))


def draw_fate(knobs: Knobs, chance: random.Random) -> Fate:
    point = chance.random()
    for fate, share in knobs.shares:
        point -= share
        if point < 0:
            return fate
    return "ok"
