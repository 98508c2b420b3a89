"""A reward function for verl.

Run verl with
    custom_reward_function.path=examples/verl_reward.py custom_reward_function.name=compute_score
ASSAY_URL and ASSAY_TOKEN must be set where the reward workers run. Without a file of your own it is
path=pkg://assay.rewards.verl name=compute_score_async, and ASSAY_REWARD says which reward.

Run by itself it scores three answers: python examples/verl_reward.py
"""

import asyncio
from typing import Any

from assay.rewards import verl

#: One spec for each data source; every sample gets the same keys, as verl wants it.
REWARDS: dict[str, Any] = {
    "openai/gsm8k": {"scorers": [{"name": "numeric_match", "as": "answer"}]},
    "lighteval/MATH": {"scorers": [{"name": "math_equal", "as": "answer"}]},
}


async def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, Any]:
    """Awaited by verl's reward loop for all samples of a step at once: they become one job per data source."""
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
