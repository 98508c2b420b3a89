"""Reward function for verl.

Run verl with
    custom_reward_function.path=examples/verl_reward.py custom_reward_function.name=compute_score
ASSAY_URL and ASSAY_TOKEN must be set on the hosts of the reward workers. Without your own file, use
path=pkg://assay.rewards.verl name=compute_score_async, and set the reward with ASSAY_REWARD.

Run by itself it scores three answers: python examples/verl_reward.py
"""

import asyncio
from typing import Any

from assay.rewards import verl

#: A spec for each data source; every sample gets the same keys, as verl requires.
REWARDS: dict[str, Any] = {
    "openai/gsm8k": {"scorers": [{"name": "numeric_match", "as": "answer"}]},
    "lighteval/MATH": {"scorers": [{"name": "math_equal", "as": "answer"}]},
}


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    """Score a sample. verl's reward loop awaits this concurrently for the samples of a step: they become a single job
    per data source."""
    reward = REWARDS[data_source]
    return await verl.compute_score_async(data_source, solution_str, ground_truth, extra_info, reward=reward, **kwargs)


async def main() -> None:
    samples = [
        ("openai/gsm8k", "48 + 24 = 72. #### 72", "72"),
        ("openai/gsm8k", "It is 96.", "72"),
        ("lighteval/MATH", r"So it is \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    ]
    for sample, result in zip(samples, await asyncio.gather(*(compute_score(*each) for each in samples)), strict=True):
        print(result["score"], result["valid"], sample[1])


if __name__ == "__main__":
    asyncio.run(main())
