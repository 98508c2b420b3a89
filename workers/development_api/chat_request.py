"""Parser of a call's body: validates the fields that this API uses, with OpenAI's error messages."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from workers.development_api.knobs import Knobs
from workers.development_api.prompt_parser import Question, read_question
from workers.development_api.tokenizer import count_messages

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20


class Invalid(ValueError):
    """The request is invalid."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


@dataclass(frozen=True, slots=True)
class Asked:
    model: str
    question: Question
    prompt_tokens: int
    checksum: int
    """Checksum of the whole body without its seed."""
    temperature: float = 1.0
    seed: int | None = None
    n: int = 1
    max_tokens: int = 0
    """0: no limit."""
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    wants_object: bool = False
    logprobs: bool = False
    top_logprobs: int = 0
    stream: bool = False
    wants_usage: bool = False


def read_json(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"We could not parse the JSON body of your request. ({error})") from error
    if not isinstance(document, dict):
        raise Invalid("The body of your request must be a JSON object.")
    return document


def read_body(document: dict[str, Any], body: bytes, knobs: Knobs) -> Asked:
    """Parse a body. Raises Invalid, also for features that the knobs declare unsupported."""
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        raise Invalid("Missing required parameter: 'messages'.", "messages", "missing_required_parameter")
    schema, wants_object = _form(document.get("response_format") or {"type": "text"}, knobs)
    logprobs, top_logprobs = bool(document.get("logprobs")), _number(document, "top_logprobs", 0, 0, MAX_TOP_LOGPROBS)
    if logprobs and knobs.logprobs == "no":
        raise Invalid(
            "Unsupported parameter: 'logprobs' is not supported with this model.", "logprobs", "unsupported_parameter"
        )
    if top_logprobs and not logprobs:
        raise Invalid("The 'logprobs' parameter must be set to true when using 'top_logprobs'.", "top_logprobs")
    stop, options, seed = document.get("stop") or (), document.get("stream_options"), document.get("seed")
    if not isinstance(stop, str | list | tuple):
        raise Invalid("Invalid type for 'stop': expected a string or an array of strings.", "stop", "invalid_type")
    # The seed is left out and mixed in separately, so that two bodies with the same seed draw different numbers.
    whole = json.dumps({**document, "seed": None}) if seed is not None else body
    return Asked(
        model=str(document.get("model", "")),
        question=read_question(messages),
        prompt_tokens=count_messages(messages),
        checksum=crc32(whole if isinstance(whole, bytes) else whole.encode(errors="replace")),
        temperature=_real(document, "temperature", 1.0, 0.0, 2.0),
        seed=seed if isinstance(seed, int) else None,
        n=_number(document, "n", 1, 1, MAX_CHOICES),
        max_tokens=_number(document, "max_completion_tokens", 0, 1, 2**31)
        or _number(document, "max_tokens", 0, 1, 2**31),
        stop=(stop,) if isinstance(stop, str) else tuple(str(word) for word in stop if word),
        schema=schema,
        wants_object=wants_object,
        logprobs=logprobs and knobs.logprobs == "yes",
        top_logprobs=top_logprobs,
        stream=bool(document.get("stream")),
        wants_usage=isinstance(options, dict) and bool(options.get("include_usage")),
    )


def _form(form: Any, knobs: Knobs) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the schema of a `response_format`, and whether it requests a JSON object without a schema."""
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        raise Invalid(
            "Invalid value: 'response_format.type'. Supported values are: 'json_object', 'json_schema', and 'text'.",
            "response_format.type",
            "invalid_value",
        )
    if (kind == "json_schema" and knobs.schema in ("object", "no")) or (kind == "json_object" and knobs.schema == "no"):
        raise Invalid(
            f"Invalid parameter: 'response_format' of type '{kind}' is not supported with this model.",
            "response_format",
        )
    if kind != "json_schema":
        return None, kind == "json_object"
    named = form.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise Invalid(
            "Missing required parameter: 'response_format.json_schema.schema'.",
            "response_format.json_schema.schema",
            "missing_required_parameter",
        )
    return schema, False


def _number(document: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Invalid(f"Invalid '{name}': expected an integer from {low} to {high}.", name, "invalid_value")
    return value


def _real(document: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = document.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise Invalid(f"Invalid '{name}': expected a number from {low:g} to {high:g}.", name, "invalid_value")
    return float(value)
