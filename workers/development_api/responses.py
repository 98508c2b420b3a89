"""Replies in OpenAI's formats: completions with usage and log-probabilities, their stream, and errors."""

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from zlib import crc32

from workers.development_api import FINGERPRINT, NOTICE, tokenizer
from workers.development_api.chat_request import Asked, Invalid
from workers.development_api.grading_rule import Judge, Word
from workers.development_api.knobs import Fate, Knobs
from workers.development_api.verdict_writer import Piece, fill_object, fill_schema, fill_text

#: Minimum `max_tokens` of an answer with a rationale: with fewer tokens the reply is the verdict alone.
TERSE_TOKENS = 24
REFUSAL = "I'm sorry, but I can't help with that."
#: Tokens in one piece of a streamed reply.
STREAM_TOKENS = 16


#: Probabilities of the possible words, by the index of a reply's token.
Odds = Mapping[int, Mapping[str, float]]
_SAME = random.Random(0)


@dataclass(frozen=True, slots=True)
class Choice:
    tokens: list[str]
    finish_reason: str
    odds: Odds = field(default_factory=dict)
    refusal: str | None = None


def make_choices(asked: Asked, knobs: Knobs, fate: Fate, number: int) -> list[Choice]:
    """Return the answers to a call; `number` is the call's number, which distinguishes samples without a seed."""
    try:
        return [_choice(asked, knobs, fate, index, number) for index in range(asked.n)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if asked.schema is None:
            raise
        raise Invalid(f"Invalid schema for response_format: {error}", "response_format", "invalid_schema") from error


def _choice(asked: Asked, knobs: Knobs, fate: Fate, index: int, number: int) -> Choice:
    if fate == "refusal":
        return Choice([], "stop", refusal=REFUSAL)
    if fate == "unparsable":
        return _bounded(asked, *_tokens([f"{NOTICE} It would rather not say how good this is."]))
    chance = _SAME  # unused: no number is drawn
    if asked.temperature > 0 or knobs.share_first:
        drawn_by = asked.seed if asked.seed is not None else number if asked.temperature > 0 else 0
        chance = random.Random(f"{asked.checksum} {drawn_by} {index}")
    judge = Judge(
        asked.question, asked.temperature, chance, bool(knobs.share_first) and chance.random() < knobs.share_first
    )
    said, odds = _tokens(_pieces(asked, knobs, judge))
    if fate in ("length", "filter"):
        return Choice(said[: len(said) // 2], "length" if fate == "length" else "content_filter", odds)
    return _bounded(asked, said, odds)


def _pieces(asked: Asked, knobs: Knobs, judge: Judge) -> Iterator[Piece]:
    rationale = "" if asked.max_tokens and asked.max_tokens < TERSE_TOKENS else f"{NOTICE} {judge.because()}"
    if knobs.thinking:
        yield f"<think>\nAt first sight it is the worst there is.\nScore: {judge.form.low:g}\n</think>\n"
    if asked.schema is not None and knobs.schema == "yes":
        yield from fill_schema(judge, rationale, asked.schema)
    elif judge.form.wants_object or (asked.wants_object and knobs.schema in ("yes", "object")):
        yield from fill_object(judge, rationale)
    elif rationale:
        yield from fill_text(judge, rationale)
    else:
        yield next(piece for piece in fill_text(judge, "") if isinstance(piece, Word))


def _tokens(pieces: Iterable[Piece]) -> tuple[list[str], Odds]:
    said: list[str] = []
    odds = {}
    for piece in pieces:
        if isinstance(piece, Word):
            words = tokenizer.split(piece.text)
            if len(words) == 1:
                odds[len(said)] = piece.odds
            said += words
        else:
            said += tokenizer.split(piece)
    return said, odds


def _bounded(asked: Asked, said: list[str], odds: Odds) -> Choice:
    """Truncate a reply at a stop word or at `max_tokens`."""
    finish_reason = "stop"
    if asked.max_tokens and len(said) > asked.max_tokens:
        said, finish_reason = said[: asked.max_tokens], "length"
    if asked.stop:
        text = "".join(said)
        if found := [place for word in asked.stop if (place := text.find(word)) >= 0]:
            said, finish_reason = tokenizer.split(text[: min(found)]), "stop"
            odds = {place: words for place, words in odds.items() if place < len(said) and said[place] in words}
    return Choice(said, finish_reason, odds)


def usage(asked: Asked, choices: Iterable[Choice]) -> dict[str, int]:
    completion = sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": asked.prompt_tokens + completion,
    }


def completion(asked: Asked, model: str, choices: list[Choice], name: str, created: int) -> bytes:
    return _encoded(
        _frame("chat.completion", model, name, created)
        | {
            "choices": [
                {
                    "index": index,
                    "message": {
                        "role": "assistant",
                        "content": None if choice.refusal else "".join(choice.tokens),
                        "refusal": choice.refusal,
                    },
                    "logprobs": _logprobs(choice, 0, len(choice.tokens), asked.top_logprobs)
                    if asked.logprobs
                    else None,
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage(asked, choices),
        }
    )


def stream(asked: Asked, model: str, choices: list[Choice], name: str, created: int) -> Iterator[bytes]:
    """Encode a completion as server-sent events."""
    frame = _frame("chat.completion.chunk", model, name, created)

    def event(
        index: int, delta: dict[str, Any], odds: dict[str, Any] | None = None, finish: str | None = None
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": odds, "finish_reason": finish}
        return b"data: " + _encoded(frame | {"choices": [choice]}) + b"\n\n"

    for index, choice in enumerate(choices):
        yield event(index, {"role": "assistant", "content": None if choice.refusal else "", "refusal": None})
        if choice.refusal:
            yield event(index, {"refusal": choice.refusal})
        for start in range(0, len(choice.tokens), STREAM_TOKENS):
            stop = min(start + STREAM_TOKENS, len(choice.tokens))
            odds = _logprobs(choice, start, stop, asked.top_logprobs) if asked.logprobs else None
            yield event(index, {"content": "".join(choice.tokens[start:stop])}, odds)
        yield event(index, {}, finish=choice.finish_reason)
    if asked.wants_usage:
        yield b"data: " + _encoded(frame | {"choices": [], "usage": usage(asked, choices)}) + b"\n\n"
    yield b"data: [DONE]\n\n"


def error(message: str, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    return _encoded({"error": {"message": message, "type": kind, "param": param, "code": code}})


def models(names: Iterable[str]) -> bytes:
    listed = [{"id": name, "object": "model", "created": 0, "owned_by": FINGERPRINT} for name in names]
    return _encoded({"object": "list", "data": listed})


def _frame(kind: str, model: str, name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": created, "model": model, "system_fingerprint": FINGERPRINT}


def _logprobs(choice: Choice, start: int, stop: int, top: int) -> dict[str, Any]:
    """Return the log-probabilities of the tokens from `start` to `stop`."""
    content = []
    for place in range(start, stop):
        token = choice.tokens[place]
        odds = choice.odds.get(place) or _plain_odds(token)
        likeliest = [_logprob(word, share) for word, share in islice(odds.items(), top)]
        content.append(_logprob(token, odds[token]) | {"top_logprobs": likeliest})
    return {"content": content, "refusal": None}


def _plain_odds(token: str) -> dict[str, float]:
    """Return the probabilities of a word outside the verdict: nearly certain, with one alternative."""
    doubt = crc32(token.encode(errors="replace")) % 100 / 1000 + 1e-4
    return {token: 1 - doubt, "…" if token != "…" else "?": doubt}


def _logprob(token: str, share: float) -> dict[str, Any]:
    return {"token": token, "logprob": math.log(max(share, 1e-30)), "bytes": list(token.encode(errors="replace"))}


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
