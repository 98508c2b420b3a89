"""Rewards for trainers. Nothing of a trainer's is imported here, nor torch: they are met where they are used.

`Reward` for a loop of your own; `assay.rewards.trl`, `.verl` and `.swift` for these trainers;
`LengthPenaltyRewardManager` for verl's reward managers.
"""

from assay.rewards.core import RewardClient
from assay.rewards.judge_profile import ProfileMissing
from assay.rewards.length_penalty_config import LengthPenaltyConfig
from assay.rewards.length_penalty_manager import LengthPenaltyRewardManager
from assay.rewards.plain import Reward

__all__ = ["LengthPenaltyConfig", "LengthPenaltyRewardManager", "ProfileMissing", "Reward", "RewardClient"]
