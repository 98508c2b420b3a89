"""Mathematics of `async_grpo.py`: advantages within a group, and the loss of samples that older weights generated."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from addition import pad
from torch import Tensor
from transformers import PreTrainedModel

#: Lower and upper clipping range of a token's importance weight (asymmetric, as in DAPO's clip-higher).
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
#: Maximum importance weight of a stale token.
MOST_WEIGHT = 4.0


@dataclass(frozen=True)
class Sample:
    prompt: list[int]
    answer: list[int]
    logprobs: list[float]
    """Log-probability of each token of the answer, under the weights that generated it."""
    advantage: float


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return the deviation of each reward from the group's mean, in standard deviations; 0 if the rewards are equal."""
    values = torch.tensor(rewards, dtype=torch.float64)
    deviation = values.std(unbiased=False)
    return ((values - values.mean()) / (deviation + 1e-6)).tolist() if deviation > 0 else [0.0] * len(rewards)


def loss_of(model: PreTrainedModel, samples: Sequence[Sample]) -> tuple[Tensor, dict[str, float]]:
    """Return the clipped, importance-weighted policy gradient loss and its metrics. The importance weight of a token is
    its probability under the current weights, divided by its probability under the weights that generated it."""
    tokens, labels = pad([(each.prompt, each.answer) for each in samples])
    mask = labels[:, 1:] != -100
    logits = model(input_ids=tokens).logits[:, :-1]
    now = torch.log_softmax(logits, -1).gather(2, tokens[:, 1:, None])[..., 0]
    then = torch.zeros_like(now)
    gain = torch.zeros_like(now)
    for at, each in enumerate(samples):
        first = len(each.prompt) - 1
        then[at, first : first + len(each.answer)] = torch.tensor(each.logprobs)
        gain[at, first : first + len(each.answer)] = each.advantage
    weight = torch.exp(now - then)
    clipped = weight.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    gained = torch.minimum(weight.clamp(max=MOST_WEIGHT) * gain, clipped * gain)
    number = mask.sum()
    with torch.no_grad():
        metrics = {
            "weight": float((weight * mask).sum() / number),
            "clipped": float((((weight - clipped).abs() > 1e-6) & mask).sum() / number),
            "entropy": float(-(now * mask).sum() / number),
        }
    return -(gained * mask).sum() / number, metrics
