"""Reward function for ms-swift: `--external_plugins <a file that calls register()> --reward_funcs assay`.

Only `register` imports ms-swift; without it the class can be used alone, with the interface of `AsyncORM`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from assay.rewards.core import RewardClient
from assay.rewards.items import make_items, references_in
from assay.rewards.plain import values
from assay.rewards.spec import RewardLike


class SwiftReward:
    """Reward function of ms-swift: ms-swift awaits an instance with the completions and the dataset's columns."""

    def __init__(
        self,
        reward: RewardLike,
        *,
        args: Any = None,
        reference_column: str | None = None,
        **settings: Any,
    ) -> None:
        self.args = args
        self._reference_column = reference_column
        self.client = RewardClient(reward, **settings)

    async def __call__(self, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        ids = columns.get("response_token_ids")
        items = make_items(
            completions,
            _prompts(columns.get("messages")),
            references_in(columns, self._reference_column),
            columns["prompt_id"] if all(columns.get("prompt_id") or [None]) else None,
            None if not ids or not all(ids) else [_count(each) for each in ids],
        )
        return values(await self.client.score_async(items))


def register(reward: RewardLike, name: str = "assay", **settings: Any) -> type[SwiftReward]:
    """Register the reward with ms-swift for `--reward_funcs <name>`; the settings are those of `SwiftReward`."""
    try:
        from swift.rewards import AsyncORM, orms
    except ImportError:  # before ms-swift 4
        from swift.plugin import AsyncORM, orms
    return register_in(orms, AsyncORM, reward, name, **settings)


def register_in(
    orms: MutableMapping[str, Any], base: type, reward: RewardLike, name: str = "assay", **settings: Any
) -> type[SwiftReward]:
    """Register a class in `orms`, because ms-swift creates the instances itself, with its own arguments."""

    class Registered(SwiftReward, base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self, args: Any = None, **_: Any) -> None:
            SwiftReward.__init__(self, reward, args=args, **settings)

    Registered.__name__ = Registered.__qualname__ = name  # the name in ms-swift's logs
    orms[name] = Registered
    return Registered


def _prompts(conversations: Sequence[Sequence[Mapping[str, Any]]] | None) -> list[Any] | None:
    """Return the prompt of each conversation: the messages before the completion."""
    if conversations is None:
        return None
    return [list(messages[:-1]) or None for messages in conversations]


def _count(ids: Any) -> int:
    """Count the token ids of a response, given as a flat list or as a list per turn."""
    return sum(len(each) for each in ids) if ids and isinstance(ids[0], (list, tuple)) else len(ids)
