"""Wire format of chat completions: builds request bodies, estimates their tokens and parses replies. Pure functions."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import from_json

from tasks.providers.call import ApiCall, ApiReply
from tasks.providers.retry import Lesson

#: Estimated tokens of an answer without a limit.
ANSWER_TOKENS = 1024
#: Characters per token, a conservative estimate for English; other scripts have fewer characters per token, so texts
#: are measured in bytes.
CHARACTERS_PER_TOKEN = 3.5
#: Additional tokens of each message, for its role and separators.
MESSAGE_TOKENS = 8
#: Maximum bytes of an invalid reply that an error quotes. Far more than is shown: secrets must be found and removed
#: whole, before the text is shortened.
QUOTED_BYTES = 100_000


class NotACompletion(ValueError):
    """The API's reply is not a chat completion."""


def body_of(call: ApiCall, model: str, lessons: Collection[Lesson] = ()) -> dict[str, Any]:
    """Build the request body, without the features that this model is known to reject (`lessons`)."""
    body: dict[str, Any] = {"model": model, "messages": [dict(message) for message in call.messages], **call.sampling}
    if "no_max_tokens" in lessons and "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")
    if "no_temperature" in lessons:
        body.pop("temperature", None)
    if call.schema is not None and "no_schema" not in lessons:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": dict(call.schema)},
        }
    if call.top_logprobs and "no_logprobs" not in lessons:
        body |= {"logprobs": True, "top_logprobs": call.top_logprobs}
    return body


def left_out(call: ApiCall, body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the call's sampling parameters that the body leaves out, because the model rejects them."""
    return tuple(name for name in call.sampling if name not in body and name != "max_tokens")


def estimate_tokens(call: ApiCall) -> int:
    """Estimate the maximum tokens of a call before it is made; unused tokens are given back to the limiter later."""
    size = sum(MESSAGE_TOKENS + _size(message.get("content")) / CHARACTERS_PER_TOKEN for message in call.messages)
    answer = next(
        (
            value
            for name in ("max_tokens", "max_completion_tokens")
            if isinstance(value := call.sampling.get(name), int)
        ),
        ANSWER_TOKENS,
    )
    return int(size) + answer


def _size(content: object) -> int:
    if isinstance(content, str):
        return len(content.encode(errors="replace"))
    if isinstance(content, list | tuple):
        return sum(_size(part.get("text")) for part in content if isinstance(part, Mapping))
    return 0


def read_reply(content: bytes) -> ApiReply:
    """Parse the body of a reply. Raises NotACompletion."""
    try:
        body = from_json(content)
    except ValueError as error:
        raise NotACompletion(f"not JSON: {_quoted(content)}") from error
    try:
        choice = body["choices"][0]
        message = choice["message"]
        usage = body.get("usage") or {}
        return ApiReply(
            text=message.get("content") or "",
            finish_reason=str(choice.get("finish_reason") or ""),
            refusal=message.get("refusal") or "",
            model=str(body.get("model") or ""),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
            logprobs=tuple((choice.get("logprobs") or {}).get("content") or ()),
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise NotACompletion(f"no choices in it: {_quoted(content)}") from error


def _quoted(content: bytes) -> str:
    return content[:QUOTED_BYTES].decode(errors="replace")
