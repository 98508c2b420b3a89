"""Penalty `soft_overlong`: penalize a response close to its length limit, as in the DAPO paper."""

from typing import Self

from pydantic import Field, model_validator

from tasks.scoring.penalty import PenaltyOptions, Tokens, by_length


class SoftOverlong(PenaltyOptions):
    """Share of the last `cache_length` tokens before `max_length` that a response uses, up to 1: DAPO's soft overlong
    punishment.

    0 up to `max_length` - `cache_length`; from there it rises linearly to 1 at `max_length`, and stays 1 beyond.
    """

    max_length: Tokens = Field(description="The length limit of responses, in tokens.")
    cache_length: Tokens = Field(description="Number of tokens before the limit at which the penalty begins.")

    @model_validator(mode="after")
    def _lies_before_the_limit(self) -> Self:
        if self.cache_length > self.max_length:
            raise ValueError("`cache_length` must not be greater than `max_length`")
        return self


@by_length("soft_overlong", SoftOverlong)
def soft_overlong(length: int, options: SoftOverlong) -> float:
    exceeding = length - (options.max_length - options.cache_length)
    return min(max(exceeding / options.cache_length, 0.0), 1.0)
