"""Rewards as a plain function, for a loop of your own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from assay.model import Row
from assay.rewards.core import RewardClient
from assay.rewards.items import make_items
from assay.rewards.spec import RewardLike


class Reward:
    """`Reward(["math_equal"])(responses, references=...)` is one number per response, None where there is none."""

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
        """More: `groups` (equal prompts make one if not given) and `response_tokens`."""
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
        """With parts and reasons."""
        return self.client.score(make_items(responses, prompts, references, **more))


def values(rows: Sequence[Row]) -> list[float | None]:
    """A failure is no number, whatever the job filled in."""
    return [row.score if row.valid else None for row in rows]
