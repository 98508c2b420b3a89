"""Conversion of items of OpenAI's Responses API to chat messages: texts, tool calls, and results of tools."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError, model_validator

from tasks.errors import InvalidRequest
from tasks.scoring.messages import Part
from web.http.validation import invalid_request

_KNOWN = ("message", "function_call", "function_call_output")


class _Item(BaseModel):
    """A message, a tool call, or a tool's result. Items of any other type, such as reasoning, are skipped."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    arguments: JsonValue = None
    output: JsonValue = None

    @model_validator(mode="before")
    @classmethod
    def _skip_unknown_type(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value.get("type") or "message"
        return value | {"type": kind} if kind in _KNOWN else {"type": "unknown"}


_ITEMS = TypeAdapter(list[_Item])


def prompt(instructions: JsonValue, asked: JsonValue, where: str) -> list[dict[str, Any]] | None:
    """Convert the input of a model, a text or items, to messages; the instructions come first."""
    text = [{"role": "user", "content": asked}] if isinstance(asked, str) else []
    messages = text or ([] if asked is None else chat(asked, "user", where))
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    return [*system, *messages] or None


def chat(items: JsonValue, speaker: str, where: str) -> list[dict[str, Any]]:
    """Convert items to messages; `speaker` is the role of a message without a role. Raises InvalidRequest."""
    if not isinstance(items, list):
        raise InvalidRequest(f"{where}: must be a list of items.", field=where)
    try:
        return _messages(_ITEMS.validate_python(items), speaker)
    except ValidationError as error:
        raise invalid_request(error, where) from error


def _messages(items: Sequence[_Item], speaker: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.type == "message":
            content = [part.model_dump() for part in item.content] if isinstance(item.content, list) else item.content
            messages.append({"role": item.role or speaker, "content": content})
        elif item.type == "function_call":
            # A turn may have a text and tool calls: in chat messages both are in the same message.
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            call = {"function": {"name": item.name or "", "arguments": item.arguments}}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "function_call_output":
            result = item.output if isinstance(item.output, str) else json.dumps(item.output, ensure_ascii=False)
            messages.append({"role": "tool", "content": result})
    return messages
