"""Scores of texts: rewards, embeddings, similarities; computed in batches sorted by length, within a token budget."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tasks.errors import AssayError, ModelUnsupported
from tasks.inference.engine import Embedding, RewardRequest, Scored
from workers.engines.batching import TokenBudget, run_batches, settle_each
from workers.engines.model import Model
from workers.engines.tokenization import as_messages, as_text, encode_messages

Out = TypeVar("Out")

#: Maximum tokens of a batch, on a CPU and on a GPU. Larger batches are not faster on a CPU, where padding costs time.
BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}
MOST_ROWS = 512


@dataclass(frozen=True, slots=True)
class Encoded:
    inputs: Mapping[str, list[int]]
    truncated: bool = False

    @property
    def length(self) -> int:
        return len(self.inputs["input_ids"])


def reward(model: Model, requests: Sequence[RewardRequest], sigmoid: bool) -> list[Scored | AssayError]:
    if model.config.num_labels != 1:
        raise ModelUnsupported(f"{model.ref} has {model.config.num_labels} labels; a reward model has one")
    encoded = settle_each(requests, lambda request: _encode_dialogue(model, request))

    @torch.inference_mode()
    def compute(batch: Sequence[Encoded]) -> list[Scored]:
        logits = model.network(**_padded(model, batch)).logits[:, 0].float()
        values = (logits.sigmoid() if sigmoid else logits).tolist()
        return [
            Scored(value, text.length, text.truncated, model.version) for value, text in zip(values, batch, strict=True)
        ]

    found = iter(_run(model, [each for each in encoded if isinstance(each, Encoded)], compute))
    return [next(found) if isinstance(each, Encoded) else each for each in encoded]


def embed(model: Model, texts: Sequence[str]) -> list[Embedding | AssayError]:
    """Mean of the last layer over the text's tokens, of length 1."""
    encoded = [_encode_text(model, text) for text in texts]

    @torch.inference_mode()
    def compute(batch: Sequence[Encoded]) -> list[Embedding]:
        inputs = _padded(model, batch)
        states = model.network(**inputs).last_hidden_state.float()
        weights = inputs["attention_mask"][:, :, None].to(states.dtype)
        vectors = normalize((states * weights).sum(1) / weights.sum(1)).tolist()
        return [
            Embedding(tuple(vector), text.length, text.truncated, model.version)
            for vector, text in zip(vectors, batch, strict=True)
        ]

    return _run(model, encoded, compute)


def similarity(model: Model, pairs: Sequence[tuple[str, str]]) -> list[Scored | AssayError]:
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    found = dict(zip(texts, embed(model, texts), strict=True))
    results: list[Scored | AssayError] = []
    for one, other in ((found[first], found[second]) for first, second in pairs):
        if isinstance(one, AssayError):
            results.append(one)
        elif isinstance(other, AssayError):
            results.append(other)
        else:
            cosine = math.fsum(map(operator.mul, one.vector, other.vector))
            tokens = one.tokens + other.tokens
            results.append(Scored(cosine, tokens, one.truncated or other.truncated, model.version))
    return results


def _encode_dialogue(model: Model, request: RewardRequest) -> Encoded:
    """Encode prompt and response with the chat template, or as a text pair if the model has no template. A text that is
    too long loses its start; of a pair, the longer part loses it."""
    tokenizer, most = model.tokenizer, model.max_length
    if tokenizer.chat_template:
        said = [*as_messages(request.prompt), {"role": "assistant", "content": request.response}]
        tokens = encode_messages(tokenizer, said, opens_answer=False)
        return Encoded({"input_ids": tokens[-most:]}, len(tokens) > most)
    texts = as_text(request.prompt), request.response
    found = tokenizer(*texts)
    if len(found["input_ids"]) <= most:
        return Encoded(dict(found))
    tokenizer.truncation_side = "left"
    return Encoded(dict(tokenizer(*texts, truncation="longest_first", max_length=most)), True)


def _encode_text(model: Model, text: str) -> Encoded:
    """Encode a text; a text that is too long loses its end."""
    found = model.tokenizer(text)
    if len(found["input_ids"]) <= model.max_length:
        return Encoded(dict(found))
    model.tokenizer.truncation_side = "right"
    return Encoded(dict(model.tokenizer(text, truncation=True, max_length=model.max_length)), True)


def _padded(model: Model, batch: Sequence[Encoded]) -> dict[str, Tensor]:
    width = model.width(max(each.length for each in batch))
    names = [name for name in batch[0].inputs if name != "attention_mask"]
    fill = {"input_ids": int(model.tokenizer.pad_token_id or 0)}
    inputs = {name: torch.full((len(batch), width), fill.get(name, 0)) for name in (*names, "attention_mask")}
    for at, each in enumerate(batch):
        for name in names:
            inputs[name][at, : each.length] = torch.tensor(each.inputs[name])
        inputs["attention_mask"][at, : each.length] = 1
    return {name: values.to(model.device) for name, values in inputs.items()}


def _run(
    model: Model, encoded: Sequence[Encoded], compute: Callable[[Sequence[Encoded]], Sequence[Out]]
) -> list[Out | AssayError]:
    budget = TokenBudget(BATCH_TOKENS[model.device.type], MOST_ROWS, equal_lengths=model.least_rows > 1)
    lengths = [model.width(each.length) for each in encoded]
    return run_batches(lengths, budget, lambda places: compute([encoded[place] for place in places]))
