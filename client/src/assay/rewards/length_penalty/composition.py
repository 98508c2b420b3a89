"""Composes rewards from base scores, judge scores and lengths. Pure functions; results are in input order, and the
responses of a group need not be adjacent."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.rewards.length_penalty.config import LengthPenaltyConfig
from assay.rewards.length_penalty.formula import group_medians, length_penalty


@dataclass(frozen=True)
class ScoredResponse:
    """The group, length and scores of a response."""

    group: Hashable
    length: int
    base_score: float | None
    """None if the base score is not known."""
    judge_score: float = 0.0
    valid: bool = True


def compose(config: LengthPenaltyConfig, responses: Sequence[ScoredResponse]) -> dict[str, list[Any]]:
    """Return the extra info of a batch by name, with `reward`. Invalid responses do not count for the median length of
    their group."""
    valid = [response.valid and response.base_score is not None for response in responses]
    groups = [response.group for response in responses]
    medians = group_medians(groups, [response.length for response in responses], valid)
    penalties = [
        length_penalty(response.length, median, config.max_penalty, config.peak_ratio, config.outer_ratio)
        if config.enable
        else 0.0
        for response, median in zip(responses, medians)
    ]
    # A response without a base score is invalid, and its reward is 0.
    rewards = [
        0.0
        if response.base_score is None
        else response.base_score + response.judge_score * config.reward_coefficient - config.penalty_scale * penalty
        for response, penalty in zip(responses, penalties)
    ]
    return {
        "openai_quality_reward": [response.judge_score for response in responses],
        "length_penalty": penalties,
        "original_score": [response.base_score or 0.0 for response in responses],
        "response_length": [response.length for response in responses],
        "median_length": medians,
        "valid": valid,
        "reward": rewards,
    }
