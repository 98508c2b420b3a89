"""The input of a reward manager: the part of verl's `DataProto` that managers read, and a tokenizer.

tests/end_to_end/test_real_trainers.py compares it with the real class where verl can be installed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


class Batch(dict[str, torch.Tensor]):
    """Like a TensorDict, it lists its keys and does not support `in`."""

    def __contains__(self, name: object) -> bool:
        raise NotImplementedError("TensorDict does not support membership checks with the `in` keyword")


class DataProto:
    def __init__(self, batch: Mapping[str, torch.Tensor], entries: Mapping[str, np.ndarray], **meta: Any) -> None:
        self.batch, self.non_tensor_batch, self.meta_info = Batch(batch), dict(entries), meta

    def __len__(self) -> int:
        return len(self.batch["responses"])


class Letters:
    """A tokenizer that makes a token of each character; 0 is padding."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        numbers = [int(each) for each in ids]
        return "".join(map(chr, (each for each in numbers if each or not skip_special_tokens)))


def tensors(prompts: Sequence[str], responses: Sequence[str]) -> dict[str, torch.Tensor]:
    """Pad prompts on the left and responses on the right, and make the attention mask of both."""
    wide, long = max(map(len, prompts)) + 2, max(map(len, responses)) + 3
    asked = [[0] * (wide - len(text)) + Letters().encode(text) for text in prompts]
    answered = [Letters().encode(text) + [0] * (long - len(text)) for text in responses]
    ids = torch.tensor([[*left, *right] for left, right in zip(asked, answered, strict=True)])
    return {
        "prompts": torch.tensor(asked),
        "responses": torch.tensor(answered),
        "attention_mask": (ids != 0).long(),
    }


def entries(uids: Sequence[str], truths: Sequence[Any], source: str = "test") -> dict[str, np.ndarray]:
    return {
        "uid": np.array(uids, dtype=object),
        "data_source": np.array([source] * len(uids), dtype=object),
        "reward_model": np.array([{"ground_truth": truth} for truth in truths], dtype=object),
    }


def make_data(responses: Sequence[str], uids: Sequence[str], truths: Sequence[Any] | None = None) -> DataProto:
    prompts = [f"prompt of {uid}" for uid in uids]
    return DataProto(tensors(prompts, responses), entries(uids, truths or [""] * len(uids)))
