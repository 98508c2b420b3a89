"""A reward for ms-swift: `--external_plugins <a file that calls register()> --reward_funcs assay`.

ms-swift is imported only to be registered with: without it the class stands on its own, with the face of `AsyncORM`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from assay.rewards.core import RewardClient
from assay.rewards.items import make_items, references_in
from assay.rewards.plain import values
from assay.rewards.spec import RewardLike


class SwiftReward:
    """An instance is a reward function of ms-swift's: awaited with completions and the dataset's columns."""

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
    """Make it known to ms-swift as `--reward_funcs <name>`. Settings are those of `SwiftReward`."""
    try:
        from swift.rewards import AsyncORM, orms
    except ImportError:  # before ms-swift 4
        from swift.plugin import AsyncORM, orms
    return register_in(orms, AsyncORM, reward, name, **settings)


def register_in(
    orms: MutableMapping[str, Any], base: type, reward: RewardLike, name: str = "assay", **settings: Any
) -> type[SwiftReward]:
    """ms-swift makes the instances itself, with its own arguments."""

    class Registered(SwiftReward, base):  # type: ignore[misc]  # the base is known at run time only
        def __init__(self, args: Any = None, **_: Any) -> None:
            SwiftReward.__init__(self, reward, args=args, **settings)

    Registered.__name__ = Registered.__qualname__ = name  # what ms-swift logs it under
    orms[name] = Registered
    return Registered


def _prompts(conversations: Sequence[Sequence[Mapping[str, Any]]] | None) -> list[Any] | None:
    """What was asked: the messages before the completion."""
    if conversations is None:
        return None
    return [list(messages[:-1]) or None for messages in conversations]


def _count(ids: Any) -> int:
    """Token ids of one response, in one list or a list for each turn."""
    return sum(len(each) for each in ids) if ids and isinstance(ids[0], (list, tuple)) else len(ids)
