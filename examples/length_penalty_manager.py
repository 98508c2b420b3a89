"""Judged rewards with a length penalty, computed in the background of a training step: submit, train, collect.

Run: pip install torch ./client && python examples/length_penalty_manager.py [PROFILE]   (ASSAY_URL, ASSAY_TOKEN)

docs/trainers.md says how to use the manager in verl.
"""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import torch
from assay.rewards import LengthPenaltyConfig, LengthPenaltyRewardManager

PROMPT = "How many clips in all? "
ANSWERS = [
    "48 + 24 = 72",
    "It is 72, as 48 and half of 48 make 72, and nothing else was sold by her.",
    "96",
    "so 72 it is",
]


class Bytes:
    """Byte tokenizer, in place of a model's tokenizer."""

    def decode(self, ids: torch.Tensor, skip_special_tokens: bool = False) -> str:  # noqa: ARG002  # no special tokens
        return bytes(ids.tolist()).decode()


def batch() -> Any:
    """Build a batch with the fields of verl's DataProto: prompts padded on the left, responses on the right."""
    width = max(map(len, ANSWERS))
    prompts = torch.tensor([list(PROMPT.encode())] * len(ANSWERS))
    responses = torch.tensor([list(answer.encode().ljust(width, b"\0")) for answer in ANSWERS])
    mask = torch.cat([torch.ones_like(prompts), (responses != 0).long()], dim=1)
    entries = {"uid": ["sum"] * 4, "data_source": ["clips"] * 4, "reward_model": [{"ground_truth": "72"}] * 4}
    tensors = {"prompts": prompts, "responses": responses, "attention_mask": mask}
    return SimpleNamespace(batch=tensors, non_tensor_batch=entries, meta_info={})


def compute_score(solution_str: str, ground_truth: str, **_: Any) -> float:
    return float(ground_truth in solution_str)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s - %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # at INFO, httpx logs a line for every request
    profile = sys.argv[1] if len(sys.argv) > 1 else ""  # API profile of the server; not needed for the development API
    config = LengthPenaltyConfig(enable_openai_reward=True, reward_coefficient=0.1, profile=profile)
    with LengthPenaltyRewardManager(Bytes(), 0, compute_score, length_penalty_config=config) as manager:
        handle = manager.submit(batch())
        print("the trainer computes log-probabilities, runs the reference model, ...")
        extra = handle.collect(return_dict=True)["reward_extra_info"]
    for index, answer in enumerate(ANSWERS):
        print({name: round(values[index], 2) for name, values in extra.items()}, answer)


if __name__ == "__main__":
    main()
