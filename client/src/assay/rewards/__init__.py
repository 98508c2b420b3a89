"""Reward functions for trainers. Importing this package imports neither a trainer nor torch: each is imported only
where it is used.

`Reward` is for your own training loop; `assay.rewards.trl`, `.verl` and `.swift` are for TRL, verl and ms-swift;
`LengthPenaltyRewardManager` is a reward manager for verl.
"""

from assay.rewards.core import RewardClient
from assay.rewards.length_penalty.config import LengthPenaltyConfig
from assay.rewards.length_penalty.judge_profile import ProfileMissing
from assay.rewards.length_penalty.manager import LengthPenaltyRewardManager
from assay.rewards.plain import Reward

__all__ = ["LengthPenaltyConfig", "LengthPenaltyRewardManager", "ProfileMissing", "Reward", "RewardClient"]
