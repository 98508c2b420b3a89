"""Replies in OpenAI's shapes: completions with usage and log-probabilities, their stream, and errors."""

import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any
from zlib import crc32

from workers.development_api import FINGERPRINT, NOTICE, tokens
from workers.development_api.asked import Asked
from workers.development_api.form import Piece, fill_object, fill_schema, fill_text
from workers.development_api.knobs import Fate, Knobs
from workers.development_api.rule import Judge, Word

#: Below so many tokens for the answer there is no room for a rationale: the reply is the verdict alone.
TERSE_TOKENS = 24
REFUSAL = "I'm sorry, but I can't help with that."
#: Tokens in one piece of a streamed reply.
STREAM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Token:
    text: str
    odds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Choice:
    tokens: tuple[Token, ...]
    finish_reason: str
    refusal: str | None = None

    @property
    def content(self) -> str:
        return "".join(token.text for token in self.tokens)


def make_choices(asked: Asked, knobs: Knobs, fate: Fate, number: int) -> list[Choice]:
    """The answers to a call; `number` is the call's, which tells samples without a seed of their own apart."""
    return [_choice(asked, knobs, fate, index, number) for index in range(asked.n)]


def _choice(asked: Asked, knobs: Knobs, fate: Fate, index: int, number: int) -> Choice:
    drawn_by = asked.seed if asked.seed is not None else number if asked.temperature > 0 else 0
    chance = random.Random(f"{asked.checksum} {drawn_by} {index}")
    if fate == "refusal":
        return Choice((), "stop", REFUSAL)
    if fate == "unparsable":
        return _bounded(asked, _tokens([f"{NOTICE} It would rather not say how good this is."]))
    judge = Judge(asked.question, asked.temperature, chance, chance.random() < knobs.share_first)
    said = tuple(_tokens(_pieces(asked, knobs, judge)))
    if fate in ("length", "filter"):
        return Choice(said[: len(said) // 2], "length" if fate == "length" else "content_filter")
    return _bounded(asked, said)


def _pieces(asked: Asked, knobs: Knobs, judge: Judge) -> Iterator[Piece]:
    rationale = "" if asked.max_tokens and asked.max_tokens < TERSE_TOKENS else f"{NOTICE} {judge.because()}"
    if knobs.thinking:
        yield f"<think>\nAt first sight it is the worst there is.\nScore: {judge.question.low:g}\n</think>\n"
    if asked.schema is not None and knobs.schema == "yes":
        yield from fill_schema(judge, rationale, asked.schema)
    elif asked.question.wants_object or (asked.wants_object and knobs.schema in ("yes", "object")):
        yield from fill_object(judge, rationale)
    elif rationale:
        yield from fill_text(judge, rationale)
    else:
        yield next(piece for piece in fill_text(judge, "") if isinstance(piece, Word))


def _tokens(pieces: Iterable[Piece]) -> Iterator[Token]:
    for piece in pieces:
        if isinstance(piece, Word):
            first, *rest = tokens.split(piece.text) or [""]
            yield Token(first, {} if rest else piece.odds)
            yield from (Token(text, {}) for text in rest)
        else:
            yield from (Token(text, {}) for text in tokens.split(piece))


def _bounded(asked: Asked, said: Iterable[Token]) -> Choice:
    """Cut at a stop word or at the most tokens that were asked for."""
    kept: list[Token] = []
    text = ""
    for token in said:
        if asked.max_tokens and len(kept) == asked.max_tokens:
            return Choice(tuple(kept), "length")
        kept.append(token)
        if asked.stop:
            text += token.text
            if found := [text.index(word) for word in asked.stop if word in text]:
                return Choice(tuple(_tokens([text[: min(found)]])), "stop")
    return Choice(tuple(kept), "stop")


def usage(asked: Asked, choices: Iterable[Choice]) -> dict[str, int]:
    completion = sum(len(choice.tokens) for choice in choices)
    return {
        "prompt_tokens": asked.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": asked.prompt_tokens + completion,
    }


def completion(asked: Asked, model: str, choices: list[Choice], name: str, created: int, logprobs: bool) -> bytes:
    return _encoded(
        _frame("chat.completion", model, name, created)
        | {
            "choices": [
                {
                    "index": index,
                    "message": {
                        "role": "assistant",
                        "content": None if choice.refusal else choice.content,
                        "refusal": choice.refusal,
                    },
                    "logprobs": _logprobs(choice.tokens, asked.top_logprobs) if logprobs else None,
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage(asked, choices),
        }
    )


def stream(asked: Asked, model: str, choices: list[Choice], name: str, created: int, logprobs: bool) -> Iterator[bytes]:
    """The same as server-sent events."""
    frame = _frame("chat.completion.chunk", model, name, created)

    def event(index: int, delta: dict[str, Any], said: tuple[Token, ...] = (), finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        choice["logprobs"] = _logprobs(said, asked.top_logprobs) if logprobs and said else None
        return b"data: " + _encoded(frame | {"choices": [choice]}) + b"\n\n"

    for index, choice in enumerate(choices):
        yield event(index, {"role": "assistant", "content": None if choice.refusal else "", "refusal": None})
        if choice.refusal:
            yield event(index, {"refusal": choice.refusal})
        said = iter(choice.tokens)
        while piece := tuple(islice(said, STREAM_TOKENS)):
            yield event(index, {"content": "".join(token.text for token in piece)}, piece)
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


def _logprobs(said: Iterable[Token], top: int) -> dict[str, Any]:
    content = []
    for token in said:
        odds = token.odds or _plain_odds(token.text)
        likeliest = [_logprob(word, share) for word, share in islice(odds.items(), top)]
        content.append(_logprob(token.text, odds[token.text]) | {"top_logprobs": likeliest})
    return {"content": content, "refusal": None}


def _plain_odds(token: str) -> dict[str, float]:
    """Of a word that is no verdict: nearly certain, with one other that could have stood there."""
    doubt = crc32(token.encode()) % 100 / 1000 + 1e-4
    return {token: 1 - doubt, "…" if token != "…" else "?": doubt}


def _logprob(token: str, share: float) -> dict[str, Any]:
    return {"token": token, "logprob": math.log(max(share, 1e-30)), "bytes": list(token.encode())}


def _encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
