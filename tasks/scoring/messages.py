"""Chat messages, wherever a prompt or a response is taken: what they say, and which tools they call.

The shape is OpenAI's, read loosely: fields that nobody here needs may be there and are kept out of the way.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag

_LOOSE = ConfigDict(frozen=True, extra="ignore")


class Part(BaseModel):
    """A piece of a message's content; one without text (an image) says nothing to a scorer."""

    model_config = _LOOSE
    text: str | None = None


class Function(BaseModel):
    model_config = _LOOSE
    name: str
    arguments: JsonValue = None


class ToolCall(BaseModel):
    model_config = _LOOSE
    function: Function

    def plain(self) -> dict[str, Any]:
        """Name and arguments; arguments that came as JSON text are read, as models write them so."""
        arguments = self.function.arguments
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):  # not JSON: what the model wrote is what is shown
                arguments = json.loads(arguments)
        return {"name": self.function.name, "arguments": arguments}


class Message(BaseModel):
    model_config = _LOOSE
    role: str
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or ""


def _form(value: object) -> str | None:
    return "text" if isinstance(value, str) else "messages" if isinstance(value, list) else None


#: A plain string, or a list of messages. The discriminator keeps a mistake's path free of what was not meant.
Chat = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Message], Field(min_length=1), Tag("messages")],
    Discriminator(
        _form, custom_error_type="chat", custom_error_message="Input should be a string or a list of messages"
    ),
]


def is_answered(response: str | Sequence[Message]) -> bool:
    """Whether there is anything the model wrote: a list without an assistant's message is no response."""
    return isinstance(response, str) or any(message.role == "assistant" for message in response)


def last_turn(response: str | Sequence[Message]) -> str:
    """What the model said last; empty when its last turn was a tool call only."""
    if isinstance(response, str):
        return response
    return next((message.text for message in reversed(response) if message.role == "assistant"), "")


def every_turn(response: str | Sequence[Message]) -> str:
    """All that the model wrote, its tool calls included; not what its tools answered."""
    if isinstance(response, str):
        return response
    pieces: list[str] = []
    for message in response:
        if message.role == "assistant":
            calls = [_line(call) for call in message.tool_calls or ()]
            pieces += [piece for piece in (message.text, *calls) if piece]
    return "\n\n".join(pieces)


def tool_calls(response: str | Sequence[Message]) -> str:
    """The tool calls of all turns as a JSON list of `{"name", "arguments"}`."""
    if isinstance(response, str):
        return "[]"
    calls = [call.plain() for message in response if message.role == "assistant" for call in message.tool_calls or ()]
    return json.dumps(calls, ensure_ascii=False)


def transcript(prompt: str | Sequence[Message]) -> str:
    """A prompt as one text."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(message.text for message in prompt if message.text)


def conversation(chat: str | Sequence[Message]) -> str:
    """All that was said and by whom, tool calls and what tools answered included."""
    if isinstance(chat, str):
        return chat
    turns = []
    for message in chat:
        calls = [_line(call) for call in message.tool_calls or ()]
        turns.append("\n".join([f"[{message.role}]", *filter(None, (message.text, *calls))]))
    return "\n\n".join(turns)


def _line(call: ToolCall) -> str:
    return f"<tool_call>{json.dumps(call.plain(), ensure_ascii=False)}</tool_call>"
