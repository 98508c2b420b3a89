"""Fits the head of the default reward model: `python -m bench.reward_head FILE [--write HEAD]`. Takes some minutes.

FILE is JSON lines as in GSM8K's release of model solutions: a `question` and, by model, a `solution` with `is_correct`.
Of two solutions of one question the correct one is preferred. Each fifth of the questions is held out once: printed is
the share of held-out pairs that a head fitted on the others puts in the right order. The head written is fitted on all.
"""

import argparse
import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import softplus
from transformers import AutoModel, AutoTokenizer

from workers.engines.batching import TokenBudget, run_batches
from workers.engines.default_models import HEAD, MINILM, locate

Pairs = list[tuple[int, int]]
FOLDS = 5
#: How strongly the head is kept small. Between 0.003 and 0.1 it made no difference beyond chance.
PENALTY = 0.01


def read_pairs(file: Path) -> tuple[list[tuple[str, str]], list[Pairs]]:
    """All texts, and for each question its pairs of them, the preferred one first."""
    texts: list[tuple[str, str]] = []
    questions: list[Pairs] = []
    for line in file.read_text().split("\n")[:-1]:
        row = json.loads(line)
        right: list[int] = []
        wrong: list[int] = []
        for answer in (each for each in row.values() if isinstance(each, dict)):
            (right if answer["is_correct"] else wrong).append(len(texts))
            texts.append((row["question"], answer["solution"]))
        questions.append([(one, other) for one in right for other in wrong])
    return texts, questions


def features(texts: list[tuple[str, str]]) -> Tensor:
    """What the classifier of MiniLM sees of each text."""
    base = locate(Path("data"))[MINILM]
    tokenizer = AutoTokenizer.from_pretrained(base)
    network = AutoModel.from_pretrained(base).eval()
    most = network.config.max_position_embeddings

    @torch.inference_mode()
    def compute(places: list[int]) -> list[Tensor]:
        pairs = [texts[place] for place in places]
        inputs = tokenizer(
            [one for one, _ in pairs], [other for _, other in pairs],
            padding=True, truncation=True, max_length=most, return_tensors="pt",
        )  # fmt: skip
        return list(network(**inputs).pooler_output)

    lengths = [len(one) + len(other) for one, other in texts]
    found = run_batches(lengths, TokenBudget(16_000, 64), compute)
    return torch.stack([each for each in found if isinstance(each, Tensor)])


def fit(seen: Tensor, pairs: Pairs) -> Tensor:
    """The head that makes the preferred of each pair likeliest (Bradley-Terry)."""
    apart = seen[[one for one, _ in pairs]] - seen[[other for _, other in pairs]]
    scale = apart.std(0)
    head = torch.zeros(seen.shape[1], requires_grad=True)
    search = torch.optim.LBFGS([head], max_iter=200)

    def loss() -> Tensor:
        search.zero_grad()
        value = softplus(-(apart / scale) @ head).mean() + PENALTY * head.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(loss)  # type: ignore[no-untyped-call]
    return (head / scale).detach()


def accuracy(seen: Tensor, pairs: Pairs, head: Tensor) -> float:
    values = seen @ head
    return sum(bool(values[one] > values[other]) for one, other in pairs) / len(pairs)


def joined(questions: list[Pairs]) -> Pairs:
    return [pair for question in questions for pair in question]


def main() -> None:
    parser = argparse.ArgumentParser(description="Fits the head of the default reward model.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", type=Path, help=f"where the head goes; the committed one is {HEAD.name}")
    arguments = parser.parse_args()
    texts, questions = read_pairs(arguments.file)
    random.Random(0).shuffle(questions)
    seen = features(texts)
    held = []
    for fold in range(FOLDS):
        head = fit(seen, joined([each for n, each in enumerate(questions) if n % FOLDS != fold]))
        held.append(accuracy(seen, joined(questions[fold::FOLDS]), head))
    pairs = joined(questions)
    print(f"{len(texts)} solutions of {len(questions)} questions, {len(pairs)} pairs")
    print(f"held-out pairs in the right order: {sum(held) / FOLDS:.3f} ({min(held):.3f} to {max(held):.3f} by fold)")
    shorter = sum(len(texts[one][1]) < len(texts[other][1]) for one, other in pairs)
    print(f"by length alone, the shorter one preferred: {shorter / len(pairs):.3f}")
    head = fit(seen, pairs)
    print(f"all pairs, by the head fitted on them: {accuracy(seen, pairs, head):.3f}")
    if arguments.write:
        save_file({"weight": head[None], "bias": torch.zeros(1)}, arguments.write)


if __name__ == "__main__":
    main()
