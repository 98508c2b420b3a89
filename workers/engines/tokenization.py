"""Conversion of prompts to tokens: plain texts, and messages through the model's chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from tasks.errors import InvalidRequest
from tasks.inference.engine import Prompt


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """Encode a text with the tokenizer's special tokens, or messages with the chat template, up to the start of the
    assistant's answer. Raises InvalidRequest."""
    if isinstance(prompt, str):
        tokens = list(tokenizer(prompt)["input_ids"])
    else:
        tokens = encode_messages(tokenizer, prompt, opens_answer=True)
    if not tokens:
        raise InvalidRequest("the prompt is empty", "prompt")
    return tokens


def encode_messages(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, Any]], opens_answer: bool
) -> list[int]:
    if not tokenizer.chat_template:
        raise InvalidRequest("the model has no chat template: pass the prompt as a text", "prompt")
    if not messages:
        raise InvalidRequest("the list of messages is empty", "prompt")
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=opens_answer, tokenize=False
        )
    except (TemplateError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the model's chat template rejects the messages: {error}", "prompt") from error
    return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])


def as_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """Return a prompt as messages; a text becomes a message of the user."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [dict(message) for message in prompt]


def as_text(prompt: Prompt) -> str:
    """Return a prompt as one text, for models without a chat template: the messages' contents, joined."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(str(message.get("content") or "") for message in prompt)
