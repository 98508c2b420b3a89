"""Penalty `overlong_buffer`: penalize a response that reaches into the buffer before its length limit, as in verl."""

from typing import Self

from pydantic import Field, model_validator

from tasks.scoring.penalty import PenaltyOptions, PenaltySize, Tokens, by_length


class OverlongBuffer(PenaltyOptions):
    """Share of the last `buffer_length` tokens before `max_length` that a response uses: verl's `overlong_buffer`.

    0 up to `max_length` - `buffer_length`; from there it rises linearly, to `factor` at `max_length`, and continues to
    rise beyond it.
    """

    max_length: Tokens = Field(description="The length limit of responses, in tokens.")
    buffer_length: Tokens = Field(description="Number of tokens before the limit at which the penalty begins.")
    factor: PenaltySize = Field(1.0, description="The penalty at `max_length`.")

    @model_validator(mode="after")
    def _lies_before_the_limit(self) -> Self:
        if self.buffer_length > self.max_length:
            raise ValueError("`buffer_length` must not be greater than `max_length`")
        return self


@by_length("overlong_buffer", OverlongBuffer)
def overlong_buffer(length: int, options: OverlongBuffer) -> float:
    exceeding = length - (options.max_length - options.buffer_length)
    return max(exceeding / options.buffer_length * options.factor, 0.0)
