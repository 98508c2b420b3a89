"""Handle of rewards that are computed in the background."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class RewardHandle(Protocol):
    @property
    def done(self) -> bool:
        """Whether `collect` returns without waiting."""

    def collect(self, return_dict: bool = False) -> Any:
        """Wait for the rewards; return the reward tensor or `{"reward_tensor", "reward_extra_info"}`. Idempotent."""


class CompletedRewards:
    """Handle of rewards that already exist at the submit, such as the scores of a reward model."""

    done = True

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._result = result

    def collect(self, return_dict: bool = False) -> Any:
        return self._result if return_dict else self._result["reward_tensor"]
