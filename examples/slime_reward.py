"""Reward function for slime.

Run slime with --custom-rm-path slime_reward.reward and this folder on PYTHONPATH; ASSAY_URL and ASSAY_TOKEN must be set
on the host of the rollout. A reward that is configured on the server by name does not need this file:
--rm-type remote_rm --rm-url "http://127.0.0.1:6006/rm?reward=math".

Run by itself it scores two answers: python examples/slime_reward.py
"""

import asyncio
from types import SimpleNamespace
from typing import Any

from assay.rewards import Reward

REWARD = Reward(["math_equal"])
#: Reward of an answer that could not be scored, as slime accepts only numbers.
FILL = 0.0
#: End token of your model, which slime leaves in the text.
END_TOKEN = "<|im_end|>"


async def reward(args: Any, sample: Any, **_: Any) -> Any:  # noqa: ARG001  # slime passes its arguments
    """Score a sample, or a list of samples with --group-rm. Concurrent calls share a job."""
    samples = sample if isinstance(sample, list) else [sample]
    scores = await REWARD.call_async(
        [each.response.removesuffix(END_TOKEN) for each in samples],
        references=[each.label for each in samples],
        prompts=[each.prompt for each in samples],
    )
    numbers = [FILL if score is None else score for score in scores]
    return numbers if isinstance(sample, list) else numbers[0]


async def main() -> None:
    responses = (r"It is \boxed{72}.", r"It is \boxed{96}.")
    samples = [SimpleNamespace(prompt="48 + 24?", response=text, label="72") for text in responses]
    print(await asyncio.gather(*(reward(None, each) for each in samples)), await reward(None, samples))


if __name__ == "__main__":
    asyncio.run(main())
