"""The rows that every peer has SmolLM2 answer, and how plain transformers does it."""

import os
from collections.abc import Callable
from typing import Any

from bench.inference import questions
from bench.peers.questions import Question

#: New tokens of an answer.
TOKENS = 24


def make_rows(first: int, number: int, repeated_share: float = 0.0) -> list[Question]:
    """All different, of several lengths."""
    assert not repeated_share
    return [Question({"query": text}, [{"role": "user", "content": text}]) for text in questions(number, first)]


def load_generator() -> Callable[[Any], str]:
    """From messages to an answer, one `generate` each; the model is that of BENCH_MODEL."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(os.environ["BENCH_MODEL"])
    network: Any = AutoModelForCausalLM.from_pretrained(os.environ["BENCH_MODEL"], dtype=torch.float32)

    def generate(messages: Any) -> str:
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            tokens = network.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        text: str = tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return text

    return generate
