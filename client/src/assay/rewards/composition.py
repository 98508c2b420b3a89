"""From base scores, judge scores and lengths to rewards. Pure; everything in input order, wherever groups lie."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.rewards.length_penalty import group_medians, length_penalty
from assay.rewards.length_penalty_config import LengthPenaltyConfig


@dataclass(frozen=True)
class Part:
    """What is known of one response."""

    group: Hashable
    length: int
    base_score: float | None
    """None: it could not be found."""
    judge_score: float = 0.0
    valid: bool = True


def compose(config: LengthPenaltyConfig, parts: Sequence[Part]) -> dict[str, list[Any]]:
    """The extra info of a batch, `reward` among it. Responses that are not valid leave their group's median alone."""
    valid = [part.valid and part.base_score is not None for part in parts]
    medians = group_medians([part.group for part in parts], [part.length for part in parts], valid)
    penalties = [
        length_penalty(part.length, median, config.max_penalty, config.peak_ratio, config.outer_ratio)
        if config.enable
        else 0.0
        for part, median in zip(parts, medians)
    ]
    # Without a base score there is nothing to add to or take away from: 0, and not valid.
    rewards = [
        0.0
        if part.base_score is None
        else part.base_score + part.judge_score * config.reward_coefficient - config.penalty_scale * penalty
        for part, penalty in zip(parts, penalties)
    ]
    return {
        "openai_quality_reward": [part.judge_score for part in parts],
        "length_penalty": penalties,
        "original_score": [part.base_score or 0.0 for part in parts],
        "response_length": [part.length for part in parts],
        "median_length": medians,
        "valid": valid,
        "reward": rewards,
    }
