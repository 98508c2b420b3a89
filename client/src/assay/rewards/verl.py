"""Reward functions for verl, loaded by the path of this file or as `pkg://assay.rewards.verl`. Does not import verl.

`compute_score` scores a single sample. `compute_score_async` is its asyncio version for verl's reward loop, where the
samples of a step are in flight together and become a single job. `compute_score_batch` scores a batch. The reward is
set by ASSAY_REWARD (the name of a server's reward, a JSON file, or JSON) or `reward_kwargs.reward`; the server by
ASSAY_URL and ASSAY_TOKEN, or `url` and `token`. Every returned dict has the same keys: a part that a sample does not
have is 0.0, and `valid` says whether the score can be used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from assay.model import Row
from assay.rewards.core import RewardClient
from assay.rewards.items import make_items
from assay.rewards.length_penalty.trainer_values import as_plain
from assay.rewards.spec import RewardSpec

#: Keyword arguments of the reward; verl's other keyword arguments are ignored.
_SETTINGS = ("reward", "url", "token", "timeout_s", "window_s", "priority", "cache")


def compute_score(
    data_source: Any,  # noqa: ARG001  # verl passes it by name
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    **kwargs: Any,
) -> dict[str, Any]:
    client = _client_of(kwargs)
    reward = _require_independent(client.reward())
    return _result(client.score(_item(solution_str, ground_truth, extra_info))[0], reward)


async def compute_score_async(
    data_source: Any,  # noqa: ARG001  # verl passes it by name
    solution_str: str,
    ground_truth: Any,
    extra_info: Any = None,
    **kwargs: Any,
) -> dict[str, Any]:
    client = _client_of(kwargs)
    reward = _require_independent(await client.reward_async())
    return _result((await client.score_async(_item(solution_str, ground_truth, extra_info)))[0], reward)


def compute_score_batch(
    data_sources: Sequence[Any],  # noqa: ARG001  # verl passes it by name
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Any] | None = None,
    **kwargs: Any,
) -> list[dict[str, Any]]:
    """Score a batch. `extra_info["uid"]` or `["index"]` gives the group; a reward that compares the responses of a
    group needs either of them, and raises ValueError without."""
    client = _client_of(kwargs)
    reward = client.reward()
    infos = list(extra_infos) if extra_infos is not None else [None] * len(solution_strs)
    groups = [_first_value(info, "uid", "index") for info in infos]
    if reward.compares_group and None in groups:
        raise ValueError(f"{_COMPARES_GROUP} Put a `uid` into extra_info, or use LengthPenaltyRewardManager.")
    items = make_items(
        list(solution_strs),
        [_first_value(info, "prompt", "question") for info in infos],
        list(ground_truths),
        None if None in groups else groups,
    )
    return [_result(row, reward) for row in client.score(items)]


_COMPARES_GROUP = "This reward compares the responses to a prompt."


def _client_of(kwargs: dict[str, Any]) -> RewardClient:
    given = {name: as_plain(kwargs[name]) for name in _SETTINGS if kwargs.get(name) is not None}
    given.setdefault("reward", os.environ.get("ASSAY_REWARD", ""))
    key = json.dumps(given, sort_keys=True)
    known = _CLIENTS.get(key)
    return known or _CLIENTS.setdefault(key, RewardClient(**json.loads(key)))


#: Clients by settings: calls with the same settings share a client, and so share jobs.
_CLIENTS: dict[str, RewardClient] = {}


def _item(response: str, reference: Any, extra_info: Any) -> list[dict[str, Any]]:
    return make_items([response], [_first_value(extra_info, "prompt", "question")], [reference])


def _first_value(extra_info: Any, *names: str) -> Any:
    """Return the first of these fields of `extra_info` that has a value, or None."""
    return next((extra_info[name] for name in names if extra_info and extra_info.get(name) is not None), None)


def _require_independent(reward: RewardSpec) -> RewardSpec:
    if reward.compares_group:
        raise ValueError(f"{_COMPARES_GROUP} A single sample is not a group: use compute_score_batch.")
    return reward


def _result(row: Row, reward: RewardSpec) -> dict[str, Any]:
    score = row.score if row.valid and row.score is not None else reward.fill
    parts = {name: row.parts.get(name, 0.0) for name in reward.parts}
    return {**parts, "score": score, "valid": row.valid}  # these keys win over a part with the same name
