"""The items of OpenAI's Responses API as chat messages: what was said, which tools were called, what they answered."""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError, model_validator

from tasks.errors import InvalidRequest
from tasks.scoring.messages import Part
from web.description import invalid

_KNOWN = ("message", "function_call", "function_call_output")


class _Item(BaseModel):
    """A message, a tool call, or a tool's answer. Others, such as reasoning, are passed over, whatever they hold."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    arguments: JsonValue = None
    output: JsonValue = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value.get("type") or "message"
        return value | {"type": kind} if kind in _KNOWN else {"type": "unknown"}


_ITEMS = TypeAdapter(list[_Item])


def prompt(instructions: JsonValue, asked: JsonValue, where: str) -> list[dict[str, Any]] | None:
    """What a model was asked: a text, or items; instructions come first."""
    said = [{"role": "user", "content": asked}] if isinstance(asked, str) else []
    messages = said or ([] if asked is None else chat(asked, "user", where))
    system = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
    return [*system, *messages] or None


def chat(items: JsonValue, speaker: str, where: str) -> list[dict[str, Any]]:
    """The items as messages; `speaker` is whose a message without a role is. Raises InvalidRequest."""
    if not isinstance(items, list):
        raise InvalidRequest(f"{where}: must be a list of items.", field=where)
    try:
        return _messages(_ITEMS.validate_python(items), speaker)
    except ValidationError as error:
        raise invalid(error, where) from error


def _messages(items: Sequence[_Item], speaker: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.type == "message":
            content = [part.model_dump() for part in item.content] if isinstance(item.content, list) else item.content
            messages.append({"role": item.role or speaker, "content": content})
        elif item.type == "function_call":
            # A turn may say something and call tools: in chat messages that is one message.
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            call = {"function": {"name": item.name or "", "arguments": item.arguments}}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "function_call_output":
            said = item.output if isinstance(item.output, str) else json.dumps(item.output, ensure_ascii=False)
            messages.append({"role": "tool", "content": said})
    return messages
