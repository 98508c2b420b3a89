"""Writer of verdicts in the requested format: any JSON schema, or a format that the prompt states in words. Yields the
reply in pieces.

Of JSON schema it supports type, properties, items, enum, const, minimum, maximum, minItems, maxLength, $ref, anyOf,
oneOf and allOf; not pattern, format or conditions.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from workers.development_api.grading_rule import Judge, Word
from workers.development_api.prompt_parser import Form

Piece = str | Word
#: Maximum levels and values of a schema that refers to itself; below them, objects and lists are empty.
MAX_DEPTH = 8
MAX_VALUES = 2000
_RATIONALES = {"rationale", "reasoning", "reason", "explanation", "feedback", "thoughts", "analysis", "critique"}


def fill_text(judge: Judge, rationale: str) -> Iterator[Piece]:
    """Yield prose that ends with the verdict: `Score: 7`, or the words that the prompt requests."""
    form = judge.form
    opening, closing = ("[[", "]]") if form.brackets else ("", "")
    if judge.is_comparison:
        label, word = "Winner", judge.winner("A", "B", form.tie)
    elif form.words:
        label, word = "Verdict", judge.either(*form.words)
    else:
        label, word = "Score", judge.number(form.low, form.high)
    yield f"{rationale}\n\n" if rationale else ""
    yield f"{form.label or label}: {opening}"
    yield word
    yield closing


def fill_object(judge: Judge, rationale: str) -> Iterator[Piece]:
    """Yield a JSON object with the names that the prompt quotes."""
    keys = judge.form.keys or ("rationale", "score")
    return fill_schema(judge, rationale, {"type": "object", "properties": {key: _guess(judge, key) for key in keys}})


def _guess(judge: Judge, key: str) -> dict[str, Any]:
    if key.lower() in _RATIONALES:
        return {"type": "string"}
    if judge.is_comparison:
        return {"enum": ["A", "B", *([judge.form.tie] if judge.form.tie else [])]}
    if judge.form.words:
        return {"enum": list(judge.form.words)}
    return {"type": "number" if judge.form.high - judge.form.low <= 1 else "integer"}


def fill_schema(judge: Judge, rationale: str, schema: Mapping[str, Any]) -> Iterator[Piece]:
    return _Filling(judge, rationale, schema).fill(schema, "", 0)


class _Filling:
    def __init__(self, judge: Judge, rationale: str, root: Mapping[str, Any]) -> None:
        self._judge, self._rationale, self._root = judge, rationale, root
        self._values = 0

    def fill(self, schema: Any, name: str, depth: int) -> Iterator[Piece]:
        self._values += 1
        is_deep = depth >= MAX_DEPTH or self._values > MAX_VALUES
        schema = self._resolved(schema if isinstance(schema, dict) else {}, is_deep)
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        kind = next((kind for kind in kinds if kind != "null"), "null") if isinstance(kinds, list) else kinds
        if "const" in schema:
            yield json.dumps(schema["const"])
        elif schema.get("enum"):
            yield from self._enum(schema["enum"], name)
        elif kind == "object" and is_deep:
            yield "{}"
        elif kind == "array" and depth >= 2 * MAX_DEPTH:
            yield "[]"
        elif kind == "object":
            yield "{"
            for number, (key, value) in enumerate(schema.get("properties", {}).items()):
                yield f"{', ' if number else ''}{json.dumps(key)}: "
                yield from self.fill(value, key, depth + 1)
            yield "}"
        elif kind == "array":
            yield "["
            for number in range(min(100, max(1, schema.get("minItems", 1)))):
                yield ", " if number else ""
                yield from self.fill(schema.get("items", {}), name, depth + 1)
            yield "]"
        elif kind in ("integer", "number"):
            yield self._judge.number(*_bounds(schema, self._judge.form), name, kind == "integer")
        elif kind == "boolean":
            yield self._judge.either("true", "false", name)
        else:
            yield "null" if kind == "null" else json.dumps(self._rationale[: schema.get("maxLength")])

    def _enum(self, values: list[Any], name: str) -> Iterator[Piece]:
        words = {value if isinstance(value, str) else json.dumps(value): value for value in values}
        if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
            yield self._judge.step(sorted(words, key=float), name)
            return
        word = self._judge.one_of(list(words), name)
        if isinstance(words[word.text], str):
            quoted = json.dumps(word.text)[1:-1]
            yield '"'
            yield Word(quoted, word.odds) if quoted == word.text else quoted
            yield '"'
        else:
            yield word

    def _resolved(self, schema: dict[str, Any], is_deep: bool) -> dict[str, Any]:
        for _ in range(MAX_DEPTH):
            if isinstance(reference := schema.get("$ref"), str):
                schema = self._at(reference) | {key: value for key, value in schema.items() if key != "$ref"}
            elif options := schema.get("anyOf") or schema.get("oneOf"):
                chosen = next((option for option in options if option.get("type") != "null"), options[0])
                if is_deep:
                    chosen = next((option for option in options if option.get("type") == "null"), chosen)
                schema = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")} | chosen
            elif parts := schema.get("allOf"):
                schema = {key: value for key, value in schema.items() if key != "allOf"}
                for part in parts:
                    schema = schema | part
            else:
                break
        return schema

    def _at(self, reference: str) -> dict[str, Any]:
        place: Any = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            place = place.get(step.replace("~1", "/").replace("~0", "~"), {}) if isinstance(place, dict) else {}
        return place if isinstance(place, dict) else {}


def _bounds(schema: Mapping[str, Any], form: Form) -> tuple[float, float]:
    """Return the range of a number: the schema's bounds, completed by the prompt's scale."""
    whole = "integer" in schema.get("type", ())
    low, high = schema.get("minimum"), schema.get("maximum")
    nudge = 1.0 if whole else 0.01
    if low is None and (above := schema.get("exclusiveMinimum")) is not None:
        low = above + nudge
    if high is None and (below := schema.get("exclusiveMaximum")) is not None:
        high = below - nudge
    if low is None:
        low = form.low if high is None or form.low <= high else high
    if high is None:
        high = form.high if form.high >= low else low
    return (float(-(-low // 1)), float(high // 1)) if whole else (float(low), float(high))
