"""A reward function for verl, by the path of this file or as `pkg://assay.rewards.verl`. verl itself is not imported.

`compute_score` is for one sample, `compute_score_async` the same for verl's reward loop (all samples of a step are then
in flight together, and become one job), `compute_score_batch` takes the plurals. Which reward: ASSAY_REWARD (a name of
the server's, a JSON file, or JSON), or `reward_kwargs.reward`; where: ASSAY_URL and ASSAY_TOKEN, or `url` and `token`.
Every dict has the same keys: a part that a sample does not have is 0.0, and `valid` says whether to believe it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from assay.model import Row
from assay.rewards.core import RewardClient
from assay.rewards.foreign import as_plain
from assay.rewards.items import make_items
from assay.rewards.spec import RewardSpec

#: Keyword arguments that are the reward's; the rest are verl's own and mean nothing here.
_SETTINGS = ("reward", "url", "token", "timeout_s", "window_s", "priority", "cache")


def compute_score(
    data_source: Any,  # noqa: ARG001  # verl passes it by name
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    **kwargs: Any,
) -> dict[str, Any]:
    client = _client_of(kwargs)
    reward = _for_one(client.reward())
    return _result(client.score(_item(solution_str, ground_truth, extra_info))[0], reward)


async def compute_score_async(
    data_source: Any,  # noqa: ARG001  # verl passes it by name
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    **kwargs: Any,
) -> dict[str, Any]:
    client = _client_of(kwargs)
    reward = _for_one(await client.reward_async())
    return _result((await client.score_async(_item(solution_str, ground_truth, extra_info)))[0], reward)


def compute_score_batch(
    data_sources: Sequence[Any],  # noqa: ARG001  # verl passes it by name
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Any] | None = None,
    **kwargs: Any,
) -> list[dict[str, Any]]:
    """Groups are told by `extra_info["uid"]` or `["index"]`; a reward that compares answers needs one of them."""
    client = _client_of(kwargs)
    reward = client.reward()
    infos = list(extra_infos) if extra_infos is not None else [None] * len(solution_strs)
    groups = [_of(info, "uid", "index") for info in infos]
    if reward.compares and None in groups:
        raise ValueError(f"{_COMPARES} Put a `uid` into extra_info, or use LengthPenaltyRewardManager.")
    items = make_items(
        list(solution_strs),
        [_of(info, "prompt", "question") for info in infos],
        list(ground_truths),
        None if None in groups else groups,
    )
    return [_result(row, reward) for row in client.score(items)]


_COMPARES = "This reward compares the answers to one prompt."


def _client_of(kwargs: dict[str, Any]) -> RewardClient:
    given = {name: as_plain(kwargs[name]) for name in _SETTINGS if kwargs.get(name) is not None}
    given.setdefault("reward", os.environ.get("ASSAY_REWARD", ""))
    key = json.dumps(given, sort_keys=True)
    known = _CLIENTS.get(key)
    return known or _CLIENTS.setdefault(key, RewardClient(**json.loads(key)))


#: One for all calls with the same settings: they share jobs.
_CLIENTS: dict[str, RewardClient] = {}


def _item(response: str, reference: Any, extra_info: Any) -> list[dict[str, Any]]:
    return make_items([response], [_of(extra_info, "prompt", "question")], [reference])


def _of(extra_info: Any, *names: str) -> Any:
    """The first of these that is there."""
    return next((extra_info[name] for name in names if extra_info and extra_info.get(name) is not None), None)


def _for_one(reward: RewardSpec) -> RewardSpec:
    if reward.compares:
        raise ValueError(f"{_COMPARES} One sample at a time is no group: use compute_score_batch.")
    return reward


def _result(row: Row, reward: RewardSpec) -> dict[str, Any]:
    score = row.score if row.valid and row.score is not None else reward.fill
    parts = {name: row.parts.get(name, 0.0) for name in reward.parts}
    return {**parts, "score": score, "valid": row.valid}  # which a part may be called too
