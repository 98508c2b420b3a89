"""Reward function for your own training loop, without a trainer library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.model import Row
from assay.rewards.core import RewardClient
from assay.rewards.items import make_items
from assay.rewards.spec import RewardLike


class Reward:
    """Reward function: `Reward(["math_equal"])(responses, references=...)` returns a number per response, or None for a
    response that could not be scored."""

    def __init__(self, reward: RewardLike, **settings: Any) -> None:
        """Settings: url, token, timeout_s, window_s, priority, cache, retry."""
        self.client = RewardClient(reward, **settings)

    def __call__(
        self,
        responses: Sequence[Any],
        references: Sequence[Any] | None = None,
        prompts: Sequence[Any] | None = None,
        **more: Any,
    ) -> list[float | None]:
        """Score responses. Further arguments: `groups` (by default, equal prompts form a group), `response_tokens`."""
        return values(self.rows(responses, references, prompts, **more))

    async def call_async(
        self,
        responses: Sequence[Any],
        references: Sequence[Any] | None = None,
        prompts: Sequence[Any] | None = None,
        **more: Any,
    ) -> list[float | None]:
        return values(await self.client.score_async(make_items(responses, prompts, references, **more)))

    def rows(
        self,
        responses: Sequence[Any],
        references: Sequence[Any] | None = None,
        prompts: Sequence[Any] | None = None,
        **more: Any,
    ) -> list[Row]:
        """Score responses and return the whole rows, with the parts of each score and the errors."""
        return self.client.score(make_items(responses, prompts, references, **more))


def values(rows: Sequence[Row]) -> list[float | None]:
    """Return the scores; an invalid row is None, even if the job filled in a score."""
    return [row.score if row.valid else None for row in rows]
