"""Task and model of `async_grpo.py`: addition of small numbers, and a tiny Llama model. About a minute of pre-training
on answers of which more than half are wrong teaches the model only the form of an answer.

The example downloads nothing: the vocabulary is ten digits, two signs and two special tokens.
"""

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

#: Exclusive upper bound of the summands.
NUMBERS = 20
#: Share of correct answers in pre-training, and the largest error of a wrong answer.
RIGHT, MISS = 0.4, 5
#: Maximum number of tokens of an answer, with its end token.
ANSWER_TOKENS = 4
PAD, END = 0, 1
LETTERS = "0123456789+="
IDS = {letter: at + 2 for at, letter in enumerate(LETTERS)}


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token per character."""
    raw = Tokenizer(models.BPE(vocab={"<pad>": PAD, "<end>": END} | IDS, merges=[]))
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>")  # type: ignore[no-untyped-call]


def network() -> LlamaForCausalLM:
    return LlamaForCausalLM(  # type: ignore[no-untyped-call]
        LlamaConfig(
            vocab_size=len(IDS) + 2,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=64,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            eos_token_id=END,
            bos_token_id=None,
        )
    )


def questions(number: int, seed: int) -> list[dict[str, str]]:
    """Return prompts with the references for checking their answers."""
    chance = random.Random(seed)
    pairs = [(chance.randrange(NUMBERS), chance.randrange(NUMBERS)) for _ in range(number)]
    return [{"prompt": f"{a}+{b}=", "reference": str(a + b)} for a, b in pairs]


def pretrain(seconds: float, seed: int, most_steps: int = 2000) -> LlamaForCausalLM:
    """Train a new model for this number of seconds or steps, until either limit is reached."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    model = network()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    until = time.monotonic() + seconds
    for step in range(most_steps):
        if time.monotonic() > until:
            break
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 100)
        tokens, labels = pad([_training_row(chance) for _ in range(128)])
        logits = model(input_ids=tokens).logits[:, :-1]
        loss = cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.train(False)
    return model


def write(model: LlamaForCausalLM, folder: Path) -> None:
    """Write model and tokenizer as an ordinary model directory."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def pad(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows of (prompt, answer). Return the tokens, and the labels: the answer tokens, and -100 elsewhere."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens, labels = torch.full((len(rows), width), PAD), torch.full((len(rows), width), -100)
    for at, (prompt, answer) in enumerate(rows):
        whole = torch.tensor(prompt + answer)
        tokens[at, : len(whole)] = whole
        labels[at, len(prompt) : len(whole)] = whole[len(prompt) :]
    return tokens, labels


def _training_row(chance: random.Random) -> tuple[list[int], list[int]]:
    a, b = chance.randrange(NUMBERS), chance.randrange(NUMBERS)
    answer = a + b if chance.random() < RIGHT else max(0, a + b + chance.randint(-MISS, MISS))
    return [IDS[letter] for letter in f"{a}+{b}="], [*(IDS[letter] for letter in str(answer)), END]


if __name__ == "__main__":  # write an untrained model, for measurements: python examples/addition.py FOLDER
    torch.manual_seed(0)
    write(network(), Path(sys.argv[1]))
