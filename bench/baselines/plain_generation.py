"""Baseline for inference jobs: `generate` of transformers, called directly."""

from collections.abc import Callable, Sequence
from typing import Any


def load_generator(model: str, new_tokens: int) -> Callable[[Sequence[Any]], list[str]]:
    """Load the model. Returns a function that answers a batch of chats with a single `generate` call, padded on the
    left."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left")
    network: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)

    def generate(chats: Sequence[Any]) -> list[str]:
        inputs = tokenizer.apply_chat_template(
            list(chats), add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        with torch.inference_mode():
            tokens = network.generate(**inputs, max_new_tokens=new_tokens, do_sample=False)
        answers: list[str] = tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return answers

    return generate
