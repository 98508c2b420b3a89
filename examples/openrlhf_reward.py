"""Reward function for OpenRLHF.

Run OpenRLHF with --reward.remote_url examples/openrlhf_reward.py (in older versions --remote_rm_url); ASSAY_URL and
ASSAY_TOKEN must be set on its host. A reward that is configured on the server by name does not need this file:
--reward.remote_url "http://127.0.0.1:6006/get_reward?reward=math".

Run by itself it scores two answers: python examples/openrlhf_reward.py
"""

from typing import Any

from assay.rewards import Reward

REWARD = Reward(["math_equal"])
#: Reward of an answer that could not be scored, as OpenRLHF accepts only numbers; `extra_logs.valid` marks it invalid.
FILL = 0.0
#: End token of your model, which OpenRLHF leaves in the text.
END_TOKEN = "<|im_end|>"


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """Score queries; a query is a prompt followed by its response. OpenRLHF calls this from many threads with a single
    sample each, and concurrent calls share a job."""
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
    prompt = "Compute 48 + 24.\n"
    queries = [prompt + r"It is \boxed{72}.", prompt + r"It is \boxed{96}."]
    print(reward_func(queries, [prompt, prompt], ["72", "72"]))
