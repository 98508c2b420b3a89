"""Reads verl's `DataProto` and builds the reward tensor, without importing verl: any object with the same fields works.

`batch` has the tensors `prompts` (padded on the left), `responses` (padded on the right) and `attention_mask` over
both; `non_tensor_batch` has arrays with one entry per sample.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    prompt: str
    response: str
    length: int
    """Number of tokens of the response."""
    group: Hashable
    """Group of responses that are compared: the `uid`, or the prompt if there is no `uid`."""
    data_source: Any
    ground_truth: Any
    extra_info: Mapping[str, Any]


def read_samples(data: Any, tokenizer: Any, reward_fn_key: str) -> list[Sample]:
    prompts, responses, mask = (data.batch[name] for name in ("prompts", "responses", "attention_mask"))
    width = prompts.shape[-1]
    prompt_lengths = mask[:, :width].sum(-1).tolist()
    response_lengths = mask[:, width:].sum(-1).tolist()
    samples = []
    for index, (prompt_length, response_length) in enumerate(zip(prompt_lengths, response_lengths)):
        entry = {name: values[index] for name, values in data.non_tensor_batch.items()}
        prompt = tokenizer.decode(prompts[index][width - int(prompt_length) :], skip_special_tokens=True)
        response = tokenizer.decode(responses[index][: int(response_length)], skip_special_tokens=True)
        extra_info = {
            **(entry.get("extra_info") or {}),
            "num_turns": entry.get("__num_turns__"),
            "rollout_reward_scores": entry.get("reward_scores") or {},
        }
        samples.append(
            Sample(
                prompt=prompt,
                response=response,
                length=int(response_length),
                group=entry.get("uid", prompt),
                data_source=entry.get(reward_fn_key),
                ground_truth=(entry.get("reward_model") or {}).get("ground_truth"),
                extra_info=extra_info,
            )
        )
    return samples


def reward_model_scores(data: Any, return_dict: bool) -> Any:
    """Return the scores that a reward model has already put into the batch, as a tensor or as a dict; None without."""
    if "rm_scores" not in data.batch.keys():  # noqa: SIM118  # a TensorDict refuses `in`
        return None
    scores = data.batch["rm_scores"]
    if not return_dict:
        return scores
    names = data.meta_info.get("reward_extra_keys", [])
    return {"reward_tensor": scores, "reward_extra_info": {name: data.non_tensor_batch[name] for name in names}}


def reward_tensor(responses: Any, lengths: Sequence[int], rewards: Sequence[float]) -> Any:
    """Build a tensor with each reward at the last token of its response. A response without tokens gets no reward."""
    import torch  # imported here, because the client does not depend on torch

    tensor = torch.zeros_like(responses, dtype=torch.float32)
    for index, (length, reward) in enumerate(zip(lengths, rewards)):
        if length > 0:
            tensor[index, length - 1] = reward
    return tensor
