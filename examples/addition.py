"""The task and the model of `async_grpo.py`: small sums, and a tiny Llama that has learnt, in about a minute, how an
answer looks, from answers more than half of which are wrong.

Nothing is downloaded: the vocabulary is ten digits, two signs and two special tokens.
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

#: Numbers below this are added.
NUMBERS = 20
#: How many of the answers it learns from are right; the others miss by so much at most.
RIGHT, MISS = 0.4, 5
#: Tokens of an answer with its end.
ANSWER_TOKENS = 4
PAD, END = 0, 1
LETTERS = "0123456789+="
IDS = {letter: at + 2 for at, letter in enumerate(LETTERS)}


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each sign."""
    raw = Tokenizer(models.BPE(vocab={"<pad>": PAD, "<end>": END} | IDS, merges=[]))
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<end>")  # type: ignore[no-untyped-call]


def network() -> LlamaForCausalLM:
    return LlamaForCausalLM(  # type: ignore[no-untyped-call]
        LlamaConfig(
            vocab_size=len(IDS) + 2, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=True, pad_token_id=PAD,
            eos_token_id=END, bos_token_id=None,
        )
    )  # fmt: skip


def questions(number: int, seed: int) -> list[dict[str, str]]:
    """Prompts with what their answers are checked against."""
    chance = random.Random(seed)
    pairs = [(chance.randrange(NUMBERS), chance.randrange(NUMBERS)) for _ in range(number)]
    return [{"prompt": f"{a}+{b}=", "reference": str(a + b)} for a, b in pairs]


def pretrain(seconds: float, seed: int, most_steps: int = 2000) -> LlamaForCausalLM:
    """For so long, or so many steps, whichever ends first."""
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
        tokens, labels = pad([_lesson(chance) for _ in range(128)])
        logits = model(input_ids=tokens).logits[:, :-1]
        loss = cross_entropy(logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.train(False)
    return model


def write(model: LlamaForCausalLM, folder: Path) -> None:
    """As an ordinary model directory."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def pad(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of (prompt, answer): all tokens, and the same with -100 where none of an answer is."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens, labels = torch.full((len(rows), width), PAD), torch.full((len(rows), width), -100)
    for at, (prompt, answer) in enumerate(rows):
        whole = torch.tensor(prompt + answer)
        tokens[at, : len(whole)] = whole
        labels[at, len(prompt) : len(whole)] = whole[len(prompt) :]
    return tokens, labels


def _lesson(chance: random.Random) -> tuple[list[int], list[int]]:
    a, b = chance.randrange(NUMBERS), chance.randrange(NUMBERS)
    answer = a + b if chance.random() < RIGHT else max(0, a + b + chance.randint(-MISS, MISS))
    return [IDS[letter] for letter in f"{a}+{b}="], [*(IDS[letter] for letter in str(answer)), END]


if __name__ == "__main__":  # one that has learnt nothing, for measurements: python examples/addition.py FOLDER
    torch.manual_seed(0)
    write(network(), Path(sys.argv[1]))
