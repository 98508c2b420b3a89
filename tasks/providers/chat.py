"""Chat completions on the wire: the body of a request, the tokens it may take, and what a reply says. Pure."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic_core import from_json

from tasks.providers.call import ApiCall, ApiReply
from tasks.providers.retry import Lesson

#: Tokens an answer is thought to have when nothing bounds it.
ANSWER_TOKENS = 1024
#: Characters of a token, on the safe side for English; other scripts have fewer and are measured by their bytes.
CHARACTERS_PER_TOKEN = 3.5
#: Tokens around each message.
MESSAGE_TOKENS = 8
#: Bytes of an answer that is no completion which an error tells. Far more than is shown: a secret in it must be found
#: whole, before anything is cut off.
TOLD_BYTES = 100_000


class NotACompletion(ValueError):
    """The API answered something else than a chat completion."""


def body_of(call: ApiCall, model: str, lessons: Collection[Lesson] = ()) -> dict[str, Any]:
    """The call as this model can take it."""
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
    """What of the call's sampling was not sent, as the model cannot take it."""
    return tuple(name for name in call.sampling if name not in body and name != "max_tokens")


def estimate_tokens(call: ApiCall) -> int:
    """Tokens the call may take at most, as far as can be told before: what is not used is given back afterwards."""
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
    """What a reply says. Raises NotACompletion."""
    try:
        body = from_json(content)
    except ValueError as error:
        raise NotACompletion(f"not JSON: {_told(content)}") from error
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
        raise NotACompletion(f"no choices in it: {_told(content)}") from error


def _told(content: bytes) -> str:
    return content[:TOLD_BYTES].decode(errors="replace")
