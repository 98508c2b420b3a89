"""Likelihood of given texts: the log-probability of each token, computed in batches sorted by length, within a token
budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tasks.errors import AssayError, InvalidRequest, PromptTooLong
from tasks.inference.engine import AnswerRequest, Likelihood, Scored
from workers.engines.batching import TokenBudget, run_batches, settle_each
from workers.engines.model import Model
from workers.engines.tokenization import encode_prompt

#: Maximum tokens of a batch, and maximum bytes of its logits, on a CPU and on a GPU. With a large vocabulary the logits
#: are the largest tensor.
BATCH_TOKENS = {"cpu": 4096, "cuda": 32768}
LOGITS_BYTES = {"cpu": 256_000_000, "cuda": 2_000_000_000}
MOST_ROWS = 256


@dataclass(frozen=True, slots=True)
class SplitText:
    """A text in two parts: the context, and the tokens whose likelihood is computed."""

    before: list[int]
    tokens: list[int]

    @property
    def length(self) -> int:
        return len(self.before) + len(self.tokens)


def likelihood(model: Model, requests: Sequence[AnswerRequest]) -> list[Likelihood | AssayError]:
    def encode(request: AnswerRequest) -> SplitText:
        answer = list(model.tokenizer(request.answer, add_special_tokens=False)["input_ids"])
        if not answer:
            raise InvalidRequest("the answer is empty", "answer")
        return _within(model, SplitText(encode_prompt(model.tokenizer, request.prompt), answer))

    return _run(model, settle_each(requests, encode))


def perplexity(model: Model, texts: Sequence[str]) -> list[Scored | AssayError]:
    def encode(text: str) -> SplitText:
        tokens = encode_prompt(model.tokenizer, text)
        if len(tokens) < 2:
            raise InvalidRequest("a text of one token has no perplexity: the first token has no context", "text")
        return _within(model, SplitText(tokens[:1], tokens[1:]))

    return [
        Scored(math.exp(-each.mean), 1 + len(each.logprobs), False, model.version)
        if isinstance(each, Likelihood)
        else each
        for each in _run(model, settle_each(texts, encode))
    ]


def _within(model: Model, text: SplitText) -> SplitText:
    if text.length > model.max_length:
        raise PromptTooLong(f"The text has {text.length} tokens; the model's context has {model.max_length}.")
    return text


def _run(model: Model, texts: Sequence[SplitText | AssayError]) -> list[Likelihood | AssayError]:
    good = [each for each in texts if isinstance(each, SplitText)]
    kind = model.device.type
    logits_tokens = max(1, LOGITS_BYTES[kind] // (4 * model.config.vocab_size))
    budget = TokenBudget(min(BATCH_TOKENS[kind], logits_tokens), MOST_ROWS, equal_lengths=model.least_rows > 1)
    lengths = [model.width(each.length) for each in good]
    found = iter(run_batches(lengths, budget, lambda places: _compute(model, [good[place] for place in places])))
    return [next(found) if isinstance(each, SplitText) else each for each in texts]


@torch.inference_mode()
def _compute(model: Model, batch: Sequence[SplitText]) -> list[Likelihood]:
    width = model.width(max(text.length for text in batch))
    tokens = torch.zeros(len(batch), width, dtype=torch.long)
    for at, text in enumerate(batch):  # padding follows the text, so causal attention never sees it
        tokens[at, : text.length] = torch.tensor(text.before + text.tokens)
    tokens = tokens.to(model.device)
    first = min(len(text.before) for text in batch)  # the first token whose likelihood any text of the batch needs
    logits = model.network(input_ids=tokens, use_cache=False, logits_to_keep=width - first + 1).logits[:, :-1].float()
    chosen = logits.gather(2, tokens[:, first:, None])[:, :, 0]
    values = (chosen - logits.logsumexp(2)).tolist()
    return [
        Likelihood(tuple(line[len(text.before) - first : text.length - first]), len(text.before), model.version)
        for line, text in zip(values, batch, strict=True)
    ]
