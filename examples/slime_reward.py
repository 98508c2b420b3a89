"""A reward function for slime.

Run slime with --custom-rm-path slime_reward.reward and this folder on PYTHONPATH; ASSAY_URL and ASSAY_TOKEN must be set
where the rollout runs. No file is needed when the server knows the reward by a name:
--rm-type remote_rm --rm-url "http://127.0.0.1:6006/rm?reward=math".

Run by itself it scores two answers: python examples/slime_reward.py
"""

import asyncio
from types import SimpleNamespace
from typing import Any

from assay.rewards import Reward

REWARD = Reward(["math_equal"])
#: What an answer gets that could not be scored: slime takes numbers only.
FILL = 0.0
#: Of your model: slime leaves it in the text.
END_TOKEN = "<|im_end|>"


async def reward(args: Any, sample: Any, **_: Any) -> Any:  # noqa: ARG001  # slime passes its arguments along
    """For one sample; for a list of them with --group-rm. Those of one moment share a job."""
    samples = sample if isinstance(sample, list) else [sample]
    scores = await REWARD.call_async(
        [each.response.removesuffix(END_TOKEN) for each in samples],
        references=[each.label for each in samples],
        prompts=[each.prompt for each in samples],
    )
    numbers = [FILL if score is None else score for score in scores]
    return numbers if isinstance(sample, list) else numbers[0]


async def main() -> None:
    said = (r"It is \boxed{72}.", r"It is \boxed{96}.")
    samples = [SimpleNamespace(prompt="48 + 24?", response=text, label="72") for text in said]
    print(await asyncio.gather(*(reward(None, each) for each in samples)), await reward(None, samples))


if __name__ == "__main__":
    asyncio.run(main())
