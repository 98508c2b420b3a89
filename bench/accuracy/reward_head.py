"""Train the head of the default reward model: `python -m bench.accuracy.reward_head FILE [--write HEAD]`.

Takes some minutes.

FILE has JSON lines in the format of GSM8K's model solutions: a `question` and, for each model, a `solution` with
`is_correct`. A correct solution is preferred to a wrong one of the same question. Five-fold cross-validation over the
questions: the program prints the share of held-out pairs that a head trained on the other folds ranks correctly. The
head that `--write` stores is trained on all pairs.
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
#: Weight of the L2 regularization of the head. Values from 0.003 to 0.1 made no difference beyond chance.
PENALTY = 0.01


def read_pairs(file: Path) -> tuple[list[tuple[str, str]], list[Pairs]]:
    """Parse the file. Returns the texts, and for each question its pairs of text indices, the preferred text first."""
    texts: list[tuple[str, str]] = []
    questions: list[Pairs] = []
    for line in file.read_text().split("\n")[:-1]:
        row = json.loads(line)
        right: list[int] = []
        wrong: list[int] = []
        for answer in (value for value in row.values() if isinstance(value, dict)):
            (right if answer["is_correct"] else wrong).append(len(texts))
            texts.append((row["question"], answer["solution"]))
        questions.append([(better, worse) for better in right for worse in wrong])
    return texts, questions


def features(texts: list[tuple[str, str]]) -> Tensor:
    """Return the input features of MiniLM's classifier for each text."""
    base = locate(Path("data"))[MINILM]
    tokenizer = AutoTokenizer.from_pretrained(base)
    network = AutoModel.from_pretrained(base).eval()
    max_tokens = network.config.max_position_embeddings

    @torch.inference_mode()
    def compute(places: list[int]) -> list[Tensor]:
        pairs = [texts[place] for place in places]
        inputs = tokenizer(
            [question for question, _ in pairs],
            [solution for _, solution in pairs],
            padding=True,
            truncation=True,
            max_length=max_tokens,
            return_tensors="pt",
        )
        return list(network(**inputs).pooler_output)

    lengths = [len(question) + len(solution) for question, solution in texts]
    found = run_batches(lengths, TokenBudget(16_000, 64), compute)
    return torch.stack([features for features in found if isinstance(features, Tensor)])


def fit(seen: Tensor, pairs: Pairs) -> Tensor:
    """Return the head with the highest likelihood of the preferences (Bradley-Terry), with L2 regularization."""
    difference = seen[[better for better, _ in pairs]] - seen[[worse for _, worse in pairs]]
    scale = difference.std(0)
    head = torch.zeros(seen.shape[1], requires_grad=True)
    search = torch.optim.LBFGS([head], max_iter=200)

    def loss() -> Tensor:
        search.zero_grad()
        value = softplus(-(difference / scale) @ head).mean() + PENALTY * head.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    search.step(loss)  # type: ignore[no-untyped-call]
    return (head / scale).detach()


def accuracy(seen: Tensor, pairs: Pairs, head: Tensor) -> float:
    """Return the share of pairs in which the head scores the preferred text higher."""
    values = seen @ head
    return sum(bool(values[better] > values[worse]) for better, worse in pairs) / len(pairs)


def all_pairs(questions: list[Pairs]) -> Pairs:
    return [pair for question in questions for pair in question]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the head of the default reward model.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", type=Path, help=f"file for the trained head; the committed file is {HEAD.name}")
    arguments = parser.parse_args()
    texts, questions = read_pairs(arguments.file)
    random.Random(0).shuffle(questions)
    seen = features(texts)
    held = []
    for fold in range(FOLDS):
        head = fit(seen, all_pairs([each for n, each in enumerate(questions) if n % FOLDS != fold]))
        held.append(accuracy(seen, all_pairs(questions[fold::FOLDS]), head))
    pairs = all_pairs(questions)
    print(f"{len(texts)} solutions of {len(questions)} questions, {len(pairs)} pairs")
    print(f"held-out pairs ranked correctly: {sum(held) / FOLDS:.3f} ({min(held):.3f} to {max(held):.3f} by fold)")
    shorter = sum(len(texts[better][1]) < len(texts[worse][1]) for better, worse in pairs)
    print(f"ranked correctly by length alone, the shorter solution preferred: {shorter / len(pairs):.3f}")
    head = fit(seen, pairs)
    print(f"training pairs ranked correctly by the final head: {accuracy(seen, pairs, head):.3f}")
    if arguments.write:
        save_file({"weight": head[None], "bias": torch.zeros(1)}, arguments.write)


if __name__ == "__main__":
    main()
