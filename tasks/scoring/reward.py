"""Reward computation: combines a base score, a judge's score, penalties and the statistics of a group.

    reward = base + judge * reward_coefficient - sum(scale * penalty)

Every part is in the result by name, and the reward is computed from the parts alone; each stage adds its parts. Not
covered: the judging itself.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.errors import CannotJudge
from tasks.jobs.model import ItemError, Result
from tasks.jobs.stage import Work
from tasks.scoring.combination import IsolatedRunner, PreparedScorer, score_item
from tasks.scoring.group_statistics import statistics_of
from tasks.scoring.lengths import Tokenizers, length_of
from tasks.scoring.messages import assistant_text
from tasks.scoring.model import PenaltyChoice, ScoreItem, ScoreSpec
from tasks.scoring.penalties.group_length import median_of
from tasks.scoring.penalty import GroupPenalty, ItemPenalty

Parts = dict[str, float]


def reward_of(spec: ScoreSpec, parts: Mapping[str, float]) -> float:
    """Compute the reward from the existing parts; a missing judge's score adds nothing."""
    judged = spec.judge.reward_coefficient * parts.get("judge", 0.0) if spec.judge else 0.0
    taken_off = math.fsum(choice.scale * parts.get(choice.name, 0.0) for choice in spec.penalties)
    return parts.get("base", 0.0) + judged - taken_off


def begin(
    spec: ScoreSpec,
    prepared: Sequence[PreparedScorer],
    item: ScoreItem,
    isolation: IsolatedRunner,
    tokenizers: Tokenizers,
    measured: Mapping[str, float] | None = None,
) -> Result:
    """Compute the parts of an item that need no group: its base score, its length and its own penalties."""
    parts: Parts = {}
    if spec.scorers:
        scored = score_item(spec, prepared, item, isolation, measured)
        if scored.error or scored.score is None:
            return scored
        parts |= {**(scored.parts or {}), "base": scored.score}
    elif item.base_score is not None:
        parts["base"] = float(item.base_score)
    elif not spec.judge:
        return Result(error=ItemError("base_score_missing", "The job has no scorers: give the item a `base_score`."))
    try:
        length = (
            length_of(item.response, item.response_tokens, spec.tokenizer, tokenizers) if spec.needs_length else None
        )
        for choice in spec.penalties:
            if isinstance(choice.penalty, ItemPenalty):
                options = choice.penalty.options.model_validate(choice.options)
                parts[choice.name] = choice.penalty.of_item(assistant_text(item.response), length, options)
    except CannotJudge as error:
        return Result(error=ItemError(error.reason, str(error)), parts=parts)
    if length is not None:
        parts["response_length"] = float(length)
    return Result(score=reward_of(spec, parts), parts=parts)


def is_judged(spec: ScoreSpec, parts: Mapping[str, float]) -> bool:
    """Return whether the judge is asked. A response with base score 0 is not worth a call, unless the job sets
    `judge_zero_scores`; a response without a base score is judged."""
    return spec.judge is not None and (spec.judge.judge_zero_scores or parts.get("base") != 0)


def join_judge(spec: ScoreSpec, carry: Mapping[str, Any] | None, result: Result) -> tuple[Parts, float]:
    """Return the parts including the judge's, and the reward so far. A failed judge adds no parts."""
    parts: Parts = dict((carry or {}).get("parts") or {})
    if result.error is None and result.score is not None:
        parts |= {"judge": result.score} | {f"judge.{name}": part for name, part in (result.parts or {}).items()}
    return parts, reward_of(spec, parts)


def finish_groups(spec: ScoreSpec, batch: Sequence[Work[ScoreItem]]) -> list[Result]:
    """Compute the rewards of whole groups. Failed items stay failed, and count neither in the median nor the mean."""
    groups: dict[str, list[Work[ScoreItem]]] = {}
    for work in batch:
        group = f"alone {work.index}" if work.item.group_id is None else f"group {work.item.group_id}"
        groups.setdefault(group, []).append(work)
    finished: dict[int, Result] = {}
    for members in groups.values():
        finished |= _finish_group(spec, members)
    return [finished[work.index] for work in batch]


def _finish_group(spec: ScoreSpec, members: Sequence[Work[ScoreItem]]) -> dict[int, Result]:
    results = {work.index: _carried(work.carry) for work in members}
    valid = [result for result in results.values() if result.error is None]
    lengths = [int(result.parts["response_length"]) for result in valid if result.parts and spec.needs_length]
    added = {
        index: _group_penalties(spec.penalties, lengths, (result.parts or {}).get("response_length"))
        for index, result in results.items()
    }
    parts = {index: dict(result.parts or {}) | added[index] for index, result in results.items()}
    rewards = {index: reward_of(spec, parts[index]) for index, result in results.items() if result.error is None}
    group = statistics_of(list(rewards.values())) if spec.group_statistics else None
    finished = {}
    for index, result in results.items():
        if group and index in rewards:
            parts[index] |= {
                "group_mean": group.mean,
                "group_std": group.std,
                "advantage": group.advantage_of(rewards[index]),
            }
        finished[index] = Result(
            score=rewards.get(index),
            parts=parts[index],
            value=result.value,
            error=result.error,
            timed_out=result.timed_out,
            cached=result.cached,
        )
    return finished


def _group_penalties(choices: Sequence[PenaltyChoice], lengths: Sequence[int], length: float | None) -> Parts:
    """Return the penalties of a length relative to the lengths of the group's valid items; empty for an unknown
    length."""
    parts: Parts = {}
    for choice in choices:
        if isinstance(choice.penalty, GroupPenalty) and length is not None:
            options = choice.penalty.options.model_validate(choice.options)
            parts[choice.name] = choice.penalty.of_group(lengths, options)(int(length))
            parts["median_length"] = median_of(lengths)
    return parts


def _carried(carry: Mapping[str, Any] | None) -> Result:
    """Rebuild the result carried from the previous stages."""
    if carry is None:
        return Result(error=ItemError("internal_error", "No result of its first stage came with this item."))
    error = carry["error"]
    return Result(
        parts=carry["parts"],
        value=carry["value"],
        error=ItemError(error["type"], error["message"], error["retryable"]) if error else None,
        timed_out=carry["status"] == "timed_out",
        cached=carry["cached"],
    )
