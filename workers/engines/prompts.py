"""From prompts to tokens and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from tasks.errors import InvalidRequest
from tasks.inference.engine import Prompt


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> list[int]:
    """A text with the special tokens that the tokenizer puts around it, or messages by the chat template, up to where
    the assistant begins to speak."""
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
        raise InvalidRequest("the model has no chat template: give the prompt as a text", "prompt")
    if not messages:
        raise InvalidRequest("there are no messages", "prompt")
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], add_generation_prompt=opens_answer, tokenize=False
        )
    except (TemplateError, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the model's chat template refuses the messages: {error}", "prompt") from error
    return list(tokenizer(str(text), add_special_tokens=False)["input_ids"])


def as_messages(prompt: Prompt) -> list[dict[str, Any]]:
    """A text is what a user says."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [dict(message) for message in prompt]


def as_text(prompt: Prompt) -> str:
    """For models without a chat template: what the messages say, one after the other."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(str(message.get("content") or "") for message in prompt)
