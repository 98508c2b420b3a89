"""Tokenizer of the development API, by simple rules.

Tokens of a reply are a word with the space before it, up to three digits, a run of whitespace, and any other character.
A token of a prompt, which may be long, is four bytes.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_TOKEN = re.compile(r" ?[^\W\d_]+|\d{1,3}|\s+|.", re.DOTALL)
PROMPT_BYTES = 4
#: Tokens of each message in addition to its text.
MESSAGE_TOKENS = 4


def split(text: str) -> list[str]:
    """Return the tokens of a text; joined they give the text again."""
    return _TOKEN.findall(text)


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a chat message; images and sound count as empty."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def count_messages(messages: Iterable[Mapping[str, Any]]) -> int:
    return sum(len(text_of(message).encode(errors="replace")) // PROMPT_BYTES + MESSAGE_TOKENS for message in messages)
