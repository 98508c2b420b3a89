"""Reward function for TRL: `GRPOTrainer(reward_funcs=TrlReward([...]))`. Does not import TRL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from assay.model import Row
from assay.rewards.core import RewardClient
from assay.rewards.items import make_items, references_in
from assay.rewards.plain import values
from assay.rewards.spec import RewardLike


class _TrlReward:
    def __init__(
        self, reward: RewardLike, *, name: str = "assay", reference_column: str | None = None, **settings: Any
    ) -> None:
        """`name` is the name in TRL's logs. Settings: url, token, timeout_s, window_s, priority, cache, retry."""
        self.__name__ = name
        self._reference_column = reference_column
        self.client = RewardClient(reward, **settings)

    def _items(self, prompts: Sequence[Any], completions: Sequence[Any], columns: dict[str, Any]) -> Any:
        ids = columns.pop("completion_ids", None)
        return make_items(
            completions,
            prompts,
            references_in(columns, self._reference_column),
            response_tokens=None if ids is None else [len(each) for each in ids],
        )

    def _log_and_return(self, rows: Sequence[Row], columns: dict[str, Any], parts: Sequence[str]) -> list[float | None]:
        """Log the parts, errors and share of valid rows to TRL's tables and metrics, and return the rewards."""
        log_extra: Callable[[str, list[Any]], None] | None = columns.get("log_extra")
        log_metric: Callable[[str, float], None] | None = columns.get("log_metric")
        if log_extra:
            for part in parts:
                log_extra(f"{self.__name__}/{part}", [row.parts.get(part) for row in rows])
            log_extra(f"{self.__name__}/error", [row.error.type if row.error else "" for row in rows])
        if log_metric and rows:
            log_metric(f"{self.__name__}/valid", sum(row.valid for row in rows) / len(rows))
        return values(rows)


class TrlReward(_TrlReward):
    """Blocking reward function. Picklable, as AsyncGRPO requires. A sample without a score gets None, which TRL leaves
    out of that sample's sum."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        rows = self.client.score(self._items(prompts, completions, columns))
        return self._log_and_return(rows, columns, self.client.reward().parts)


class AsyncTrlReward(_TrlReward):
    """Asyncio version of `TrlReward`: TRL runs it concurrently with other asynchronous reward functions."""

    async def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        rows = await self.client.score_async(self._items(prompts, completions, columns))
        return self._log_and_return(rows, columns, (await self.client.reward_async()).parts)
