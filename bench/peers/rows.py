"""The rows that every peer has SmolLM2 answer."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from bench import plain_generation
from bench.inference import questions
from bench.peers.questions import Question

#: New tokens of an answer.
TOKENS = 24


def make_rows(first: int, number: int, repeated_share: float = 0.0) -> list[Question]:
    """All different, of several lengths."""
    assert not repeated_share
    return [Question({"query": text}, [{"role": "user", "content": text}]) for text in questions(number, first)]


def load_generator() -> Callable[[Sequence[Any]], list[str]]:
    """How plain transformers answers them: the messages of several rows together. The model is that of BENCH_MODEL."""
    return plain_generation.load_generator(os.environ["BENCH_MODEL"], TOKENS)
