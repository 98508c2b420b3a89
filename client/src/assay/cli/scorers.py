"""Parser of the flag `--scorer`: NAME[:option=value[:option=value]], or a JSON object."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str) -> dict[str, Any]:
    """Parse a scorer into the form of the API. `weight` is its weight; every other option is passed to the scorer.

    A value is parsed as JSON if it is valid JSON, as a list if it has commas, otherwise as text. Raise ValueError.
    """
    if text.lstrip().startswith("{"):
        whole = json.loads(text)
        if "name" not in whole:
            raise ValueError('a scorer given as JSON needs a "name"')
        return dict(whole)
    name, *pairs = text.split(":")
    options: dict[str, Any] = {}
    for pair in pairs:
        option, equals, value = pair.partition("=")
        if not option or not equals:
            raise ValueError(f"{pair!r} is not option=value; if a value has colons, give the scorer as a JSON object")
        options[option.strip()] = _value(value)
    if not name.strip():
        raise ValueError("a scorer needs a name")
    scorer: dict[str, Any] = {"name": name.strip()}
    if "weight" in options:
        scorer["weight"] = options.pop("weight")
    return {**scorer, "options": options} if options else scorer


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return [part.strip() for part in text.split(",")] if "," in text else text
