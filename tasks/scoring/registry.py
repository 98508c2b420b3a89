"""Registry of scorers by name: the built-in scorers and the entry points of installed packages.

A package with a broken entry point is skipped with a warning in the log; it must not crash the process.
"""

import difflib
import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from tasks.scoring import model_scorers
from tasks.scoring.model_scorer import ModelScorer
from tasks.scoring.policy import PolicyScorer, policy
from tasks.scoring.scorer import Scorer
from tasks.scoring.scorers.choice import choice_match
from tasks.scoring.scorers.mathematics import math_equal
from tasks.scoring.scorers.numeric import numeric_match
from tasks.scoring.scorers.pattern import regex_
from tasks.scoring.scorers.schema import json_schema
from tasks.scoring.scorers.shape import format_, length, repetition
from tasks.scoring.scorers.text import contains, exact_match, similarity_ratio

log = logging.getLogger(__name__)

GROUP = "assay.scorers"
AnyScorer = Scorer[Any] | ModelScorer[Any] | PolicyScorer
RULES: tuple[Scorer[Any], ...] = (
    exact_match,
    numeric_match,
    math_equal,
    choice_match,
    regex_,
    json_schema,
    contains,
    similarity_ratio,
    length,
    repetition,
    format_,
)


BUILT_IN: tuple[AnyScorer, ...] = (*RULES, *model_scorers.BUILT_IN, policy)


@cache
def scorers() -> MappingProxyType[str, AnyScorer]:
    """Return the scorers by name. Entry points are loaded once per process, on first use."""
    known = {each.name: each for each in BUILT_IN}
    for point in entry_points(group=GROUP):
        found = _load(point)
        if found and found.name in known:
            log.warning("scorer %r of %s is skipped: another scorer has this name", found.name, _source(point))
        elif found:
            known[found.name] = found
    return MappingProxyType(known)


def find(name: str) -> AnyScorer:
    """Return the scorer of this name. Raises ValueError that suggests the closest name."""
    known = scorers()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown scorer {name!r}; {hint}scorers are {', '.join(sorted(known))}")


def describe() -> list[dict[str, Any]]:
    """Return every scorer with its options as a JSON schema, for documentation."""
    return [
        {"name": each.name, "description": each.description, "options": each.options.model_json_schema(by_alias=True)}
        for each in scorers().values()
    ]


def _load(point: EntryPoint) -> Scorer[Any] | None:
    try:
        found = point.load()
        if not isinstance(found, Scorer):
            raise TypeError(f"{point.value} is no scorer: decorate the function with @scorer")
        found.options.model_json_schema()
    except Exception as error:  # noqa: BLE001  # a third-party package may raise anything on import
        log.warning("scorer %s cannot be loaded: %s: %s", _source(point), type(error).__name__, error)
        return None
    return found


def _source(point: EntryPoint) -> str:
    return f"{point.name} = {point.value}" + (f" of {point.dist.name}" if point.dist else "")
