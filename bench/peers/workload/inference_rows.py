"""Inference workload: rows that every peer answers with SmolLM2."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from bench.baselines import plain_generation
from bench.parts.inference import questions
from bench.peers.workload.judge_questions import Question

#: Number of new tokens in an answer.
TOKENS = 24


def make_rows(first: int, number: int, repeated_share: float = 0.0) -> list[Question]:
    """Return `number` different rows of several lengths."""
    assert not repeated_share
    return [Question({"query": text}, [{"role": "user", "content": text}]) for text in questions(number, first)]


def load_generator() -> Callable[[Sequence[Any]], list[str]]:
    """Return a function that answers a batch of rows with plain transformers and the model of BENCH_MODEL."""
    return plain_generation.load_generator(os.environ["BENCH_MODEL"], TOKENS)
