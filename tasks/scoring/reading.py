"""Which part of a response a scorer reads. All of it in linear time: a response may be a megabyte of anything."""

from collections.abc import Sequence
from typing import Literal

from tasks.scoring import messages
from tasks.scoring.messages import Message

Reading = Literal["answer", "response", "all", "tool_calls"]

#: Tags in which models think aloud.
THINKING = ("think", "thinking")


def read(
    response: str | Sequence[Message], reading: Reading, within: str | None = None, after: str | None = None
) -> str:
    """The text to score. What is asked for and not there reads as empty: that is a wrong answer, not an error."""
    if reading == "tool_calls":
        text = messages.tool_calls(response)
    elif reading == "all":
        text = messages.every_turn(response)
    else:
        text = messages.last_turn(response)
    if reading == "answer":
        text = without_thinking(text)
    if within:
        text = last_tagged(text, within)
    if after:
        text = text.rpartition(after)[2] if after in text else ""
    return text


def without_thinking(text: str) -> str:
    """What follows the thinking. The opening tag may be missing, since chat templates often write it into the prompt;
    thinking that was cut off leaves no answer, so that a lucky number in it earns nothing."""
    for tag in THINKING:
        text = text.rpartition(f"</{tag}>")[2]
        text = text.partition(f"<{tag}>")[0]
    return text


def last_tagged(text: str, tag: str) -> str:
    """What the last complete `<tag>...</tag>` holds; empty when there is none."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end] if 0 <= start < end else ""
