"""JSON objects in a reply that is not all JSON: found wherever they stand, with their places."""

import json
import re
from collections.abc import Iterator
from typing import Any

#: Objects looked for from the end of a reply, and how deep a verdict may lie in one.
MOST_OBJECTS = 200
DEEPEST = 3

_DECODER = json.JSONDecoder(strict=False)  # models write line breaks into strings


def objects(text: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Outermost objects in order, each with its start and end."""
    done = 0
    for start in [match.start() for match in re.finditer(r"\{", text)][-MOST_OBJECTS:]:
        if start < done:
            continue
        try:
            value, done = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            continue
        yield value, start, done


def values_of(found: Any, names: frozenset[str], depth: int = 0) -> list[Any]:
    """What stands under one of these names: the nearest to the outside; several when several lie equally near."""
    if not isinstance(found, dict) or depth > DEEPEST:
        return []
    if near := [value for name, value in found.items() if _plain(name) in names]:
        return near
    return [value for inner in found.values() for value in values_of(inner, names, depth + 1)]


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())
