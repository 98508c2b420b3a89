"""What a trainer holds while rewards are computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class RewardHandle(Protocol):
    @property
    def done(self) -> bool:
        """Whether `collect` returns at once."""

    def collect(self, return_dict: bool = False) -> Any:
        """The reward tensor, or `{"reward_tensor", "reward_extra_info"}`. Waits as long as it must; may be repeated."""


class Ready:
    """Rewards that were there from the start."""

    done = True

    def __init__(self, result: Mapping[str, Any]) -> None:
        self._result = result

    def collect(self, return_dict: bool = False) -> Any:
        return self._result if return_dict else self._result["reward_tensor"]
