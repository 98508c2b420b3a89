"""Extraction of the part of a response that a scorer reads; linear time, as a response may have a megabyte of text."""

from collections.abc import Sequence
from typing import Literal

from tasks.scoring import messages
from tasks.scoring.messages import Message

Reading = Literal["answer", "response", "all", "tool_calls"]

#: Tags around the thinking of a model.
THINKING = ("think", "thinking")


def extract_text(
    response: str | Sequence[Message], reading: Reading, within: str | None = None, after: str | None = None
) -> str:
    """Return the text to score. A missing part gives an empty text, which scores as a wrong answer, not as an error."""
    if reading == "tool_calls":
        text = messages.tool_calls(response)
    elif reading == "all":
        text = messages.assistant_text(response)
    else:
        text = messages.last_assistant_text(response)
    if reading == "answer":
        text = without_thinking(text)
    if within:
        text = last_tagged(text, within)
    if after:
        text = text.rpartition(after)[2] if after in text else ""
    return text


def without_thinking(text: str) -> str:
    """Return the text after the thinking.

    The opening tag may be missing, as chat templates often put it into the prompt. Thinking that was cut off leaves an
    empty answer, so that a number in the thinking earns no score by luck.
    """
    for tag in THINKING:
        text = text.rpartition(f"</{tag}>")[2]
        text = text.partition(f"<{tag}>")[0]
    return text


def last_tagged(text: str, tag: str) -> str:
    """Return the content of the last complete `<tag>...</tag>`; empty without one."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end] if 0 <= start < end else ""
