"""Knobs of the development API: its latency, its limits and its faults.

Set on the command line, by `PUT /knobs`, or for single calls in headers (`X-Development-Share-429: 1`) and in the
model's name (`judge?schema=no&latency_ms=20`).
"""

import random
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Literal, Self
from urllib.parse import parse_qsl

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from workers.development_servers.knobs import WrongKnob, changed

Fate = Literal["ok", "429", "500", "hang", "drop", "garbage", "refusal", "length", "filter", "unparsable"]
FATES: tuple[Fate, ...] = ("429", "500", "hang", "drop", "garbage", "refusal", "length", "filter", "unparsable")
Share = Annotated[float, Field(ge=0, le=1)]
HEADER = "x-development-"


@dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True))
class Knobs:
    latency_ms: Annotated[str, Field(pattern=r"^\d+(\.\d+)?(-\d+(\.\d+)?)?$")] = "0"
    """Milliseconds until the reply: `200`, or `50-5000` for a long tail (half of the calls take at most an eighth of
    the range, on a logarithmic scale)."""
    share_429: Share = 0.0
    """Share of calls refused with 429 and `Retry-After`."""
    retry_after_s: Annotated[float, Field(ge=0, le=3600)] = 1.0
    """`Retry-After` of calls refused by `share_429` or beyond `concurrency`; 0: no such header."""
    share_500: Share = 0.0
    """Share of calls answered with 500, 502 or 503."""
    share_hang: Share = 0.0
    """Share of calls that are never answered."""
    share_drop: Share = 0.0
    """Share of calls whose connection is cut, without a byte or in the middle of the reply."""
    share_garbage: Share = 0.0
    """Share of calls answered with 200 and an invalid reply: HTML, half a JSON document, or other JSON."""
    share_refusal: Share = 0.0
    """Share of replies that are refusals."""
    share_length: Share = 0.0
    """Share of replies that end before the verdict, `finish_reason` `length`."""
    share_filter: Share = 0.0
    """Share of replies cut by a content filter, `finish_reason` `content_filter`."""
    share_unparsable: Share = 0.0
    """Share of replies without any verdict."""
    schema: Literal["yes", "object", "no", "ignored"] = "yes"
    """Supported `response_format`: any, `json_object` only, no format (refused with 400), or no format (ignored)."""
    logprobs: Literal["yes", "no", "ignored"] = "yes"
    """Whether `logprobs` are given, refused with 400, or left out silently."""
    thinking: bool = False
    """Whether replies begin with a `<think>` block with a different verdict."""
    share_first: Share = 0.0
    """Share of comparisons won by the response that is shown first: a judge with a position bias."""
    key: str = ""
    """The bearer key that calls must send; empty: no check."""
    rpm: Annotated[int, Field(ge=0)] = 0
    """Accepted calls per minute; 0: no limit."""
    tpm: Annotated[int, Field(ge=0)] = 0
    """Tokens per minute, of prompts and replies; 0: no limit."""
    window_s: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Seconds over which `rpm` and `tpm` are enforced, in proportion: with 1, `rpm` 600 is at most 10 in any second."""
    concurrency: Annotated[int, Field(ge=0)] = 0
    """Maximum calls in flight, further calls get 429; 0: no limit."""
    hold: bool = False
    """Whether accepted calls wait until this knob is off again."""
    seed: int = 0
    """Seed of the faults: the n-th call after the seed was set always gets the same fault."""

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if sum(share for _, share in self.shares) > 1 + 1e-9:
            raise ValueError("the shares of faults add up to more than 1")
        low_ms, high_ms = self.latency_bounds_ms
        if low_ms > high_ms:
            raise ValueError(f"latency_ms is {self.latency_ms}: the first number must be the smaller one")
        return self

    @cached_property
    def shares(self) -> tuple[tuple[Fate, float], ...]:
        """Possible faults of a call, with their shares; the rest is `ok`."""
        return tuple((fate, share) for fate in FATES if (share := getattr(self, f"share_{fate}")))

    @cached_property
    def latency_bounds_ms(self) -> tuple[float, float]:
        low, _, high = self.latency_ms.partition("-")
        return float(low), float(high or low)


#: Knobs of the whole server, which cannot be set for a single call.
COMMON = ("rpm", "tpm", "window_s", "concurrency", "hold", "seed", "key")


def for_one_call(knobs: Knobs, headers: Iterable[tuple[str, str]], model: str) -> tuple[Knobs, str]:
    """Return the knobs of a call with the given headers, and its model's name without the knobs."""
    name, _, suffix = model.partition("?")
    own = dict(parse_qsl(suffix, keep_blank_values=True)) if suffix else {}
    for header, value in headers:
        if header[: len(HEADER)].lower() == HEADER:
            own[header.lower().removeprefix(HEADER).replace("-", "_")] = value
    if not own:
        return knobs, name
    for knob in COMMON:
        if knob in own:
            raise WrongKnob(f"The knob {knob!r} applies to the whole server: set it with PUT /knobs.")
    return changed(knobs, own), name


def draw_fate(knobs: Knobs, chance: random.Random) -> Fate:
    point = chance.random()
    for fate, share in knobs.shares:
        point -= share
        if point < 0:
            return fate
    return "ok"


def draw_latency_s(knobs: Knobs, chance: random.Random) -> float:
    low_ms, high_ms = knobs.latency_bounds_ms
    if low_ms == high_ms:
        return low_ms / 1000
    low_ms = max(low_ms, 1.0)
    stretch: float = (high_ms / low_ms) ** (chance.random() ** 3)
    return low_ms * stretch / 1000
