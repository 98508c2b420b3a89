"""What counts as a token here.

In a reply: a word with the blank before it, up to three digits, a run of blanks, any other sign. In a prompt, which may
be long: four bytes.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_TOKEN = re.compile(r" ?[^\W\d_]+|\d{1,3}|\s+|.", re.DOTALL)
PROMPT_BYTES = 4
#: What each message costs beside its text.
MESSAGE_TOKENS = 4


def split(text: str) -> list[str]:
    """The tokens; joined they are the text again."""
    return _TOKEN.findall(text)


def text_of(message: Mapping[str, Any]) -> str:
    """What a chat message says; pictures and sound say nothing."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def count_messages(messages: Iterable[Mapping[str, Any]]) -> int:
    return sum(len(text_of(message).encode(errors="replace")) // PROMPT_BYTES + MESSAGE_TOKENS for message in messages)
