"""Chat messages of prompts and responses: schema, text extraction and tool calls.

The schema is OpenAI's, parsed leniently: unknown fields are accepted and ignored.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, JsonValue, Tag

_LOOSE = ConfigDict(frozen=True, extra="ignore")


class Part(BaseModel):
    """Content part of a message; scorers ignore parts without text, such as images."""

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
        """Return name and arguments; arguments given as JSON text, as models write them, are parsed."""
        arguments = self.function.arguments
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):  # invalid JSON is shown as text
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


#: A plain string, or a list of messages. The discriminator limits validation errors to the form that the client sent.
Chat = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Message], Field(min_length=1), Tag("messages")],
    Discriminator(
        _form, custom_error_type="chat", custom_error_message="Input should be a string or a list of messages"
    ),
]


def is_answered(response: str | Sequence[Message]) -> bool:
    """Return whether the response has text of the model: a list of messages needs an assistant message."""
    return isinstance(response, str) or any(message.role == "assistant" for message in response)


def _require_assistant_text(response: str | list[Message]) -> str | list[Message]:
    if not is_answered(response):
        raise ValueError("must have a message whose role is assistant")
    return response


#: A response: a string, or a list of messages with at least one assistant message.
ResponseChat = Annotated[Chat, AfterValidator(_require_assistant_text)]


def last_assistant_text(response: str | Sequence[Message]) -> str:
    """Return the text of the last assistant turn; empty when that turn only calls a tool."""
    if isinstance(response, str):
        return response
    return next((message.text for message in reversed(response) if message.role == "assistant"), "")


def assistant_text(response: str | Sequence[Message]) -> str:
    """Return the text of every assistant turn with its tool calls, without the results of the tools."""
    if isinstance(response, str):
        return response
    pieces: list[str] = []
    for message in response:
        if message.role == "assistant":
            calls = [_line(call) for call in message.tool_calls or ()]
            pieces += [piece for piece in (message.text, *calls) if piece]
    return "\n\n".join(pieces)


def tool_calls(response: str | Sequence[Message]) -> str:
    """Return the tool calls of every turn as a JSON list of `{"name", "arguments"}`."""
    if isinstance(response, str):
        return "[]"
    calls = [call.plain() for message in response if message.role == "assistant" for call in message.tool_calls or ()]
    return json.dumps(calls, ensure_ascii=False)


def prompt_text(prompt: str | Sequence[Message]) -> str:
    """Return a prompt as a single text, without roles."""
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(message.text for message in prompt if message.text)


def conversation(chat: str | Sequence[Message]) -> str:
    """Return every message with its role, including tool calls and the results of tools."""
    if isinstance(chat, str):
        return chat
    turns = []
    for message in chat:
        calls = [_line(call) for call in message.tool_calls or ()]
        turns.append("\n".join([f"[{message.role}]", *filter(None, (message.text, *calls))]))
    return "\n\n".join(turns)


def _line(call: ToolCall) -> str:
    return f"<tool_call>{json.dumps(call.plain(), ensure_ascii=False)}</tool_call>"
