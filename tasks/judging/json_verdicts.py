"""Parser of JSON objects embedded in a text reply: yields each object with its position in the reply."""

import json
import re
from collections.abc import Iterator
from typing import Any

#: Maximum opening braces tried, counted from the end of a reply.
MOST_OBJECTS = 200
#: Maximum depth of nested objects in which a verdict is searched.
MAX_DEPTH = 3

_DECODER = json.JSONDecoder(strict=False)  # models write line breaks into strings


def objects(text: str) -> Iterator[tuple[dict[str, Any], int, int]]:
    """Yield the outermost objects in order of position, each with its start and end."""
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
    """Return the values under any of the names; outer fields take precedence over nested fields of the same branch."""
    if not isinstance(found, dict) or depth > MAX_DEPTH:
        return []
    if outer := [value for name, value in found.items() if _normalized_name(name) in names]:
        return outer
    return [value for inner in found.values() for value in values_of(inner, names, depth + 1)]


def _normalized_name(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())
