"""A reward function for OpenRLHF.

Run OpenRLHF with --reward.remote_url examples/openrlhf_reward.py (once called --remote_rm_url); ASSAY_URL and
ASSAY_TOKEN must be set where it runs. No file is needed when the server knows the reward by a name:
--reward.remote_url "http://127.0.0.1:6006/get_reward?reward=math".

Run by itself it scores two answers: python examples/openrlhf_reward.py
"""

from typing import Any

from assay.rewards import Reward

REWARD = Reward(["math_equal"])
#: What an answer gets that could not be scored: OpenRLHF takes numbers only. `extra_logs.valid` tells them apart.
FILL = 0.0
#: Of your model: OpenRLHF leaves it in the text.
END_TOKEN = "<|im_end|>"


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """A query is prompt and response together. Called from many threads, with one sample each: they share jobs."""
    pairs = zip(queries, prompts, strict=True)
    responses = [query.removeprefix(prompt).removesuffix(END_TOKEN) for query, prompt in pairs]
    scores = REWARD(responses, references=labels, prompts=prompts)
    numbers = [FILL if score is None else score for score in scores]
    return {
        "rewards": numbers,
        "scores": numbers,
        "extra_logs": {"valid": [float(score is not None) for score in scores]},
    }


if __name__ == "__main__":
    prompt = "What is 48 + 24?\n"
    queries = [prompt + r"It is \boxed{72}.", prompt + r"It is \boxed{96}."]
    print(reward_func(queries, [prompt, prompt], ["72", "72"]))
