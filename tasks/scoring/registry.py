"""The scorers there are, by name: ours, and those that installed packages bring as entry points.

A package whose entry point is broken is named in the log and left out; it must not take a process down.
"""

import difflib
import logging
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from tasks.scoring import measures
from tasks.scoring.measure import Measure
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
AnyScorer = Scorer[Any] | Measure[Any] | PolicyScorer
RULES: tuple[Scorer[Any], ...] = (
    exact_match, numeric_match, math_equal, choice_match, regex_, json_schema, contains, similarity_ratio, length,
    repetition, format_,
)  # fmt: skip


BUILT_IN: tuple[AnyScorer, ...] = (*RULES, *measures.BUILT_IN, policy)


@cache
def scorers() -> MappingProxyType[str, AnyScorer]:
    """All of them. Entry points are read once per process, on first use."""
    known = {each.name: each for each in BUILT_IN}
    for point in entry_points(group=GROUP):
        found = _load(point)
        if found and found.name in known:
            log.warning("scorer %r of %s is left out: there is one of that name already", found.name, _source(point))
        elif found:
            known[found.name] = found
    return MappingProxyType(known)


def find(name: str) -> AnyScorer:
    """Raises ValueError with a hint."""
    known = scorers()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"there is no scorer {name!r}; {hint}scorers are {', '.join(sorted(known))}")


def describe() -> list[dict[str, Any]]:
    """Every scorer with its options as a JSON schema, for documentation."""
    return [
        {"name": each.name, "description": each.description, "options": each.options.model_json_schema(by_alias=True)}
        for each in scorers().values()
    ]


def _load(point: EntryPoint) -> Scorer[Any] | None:
    try:
        found = point.load()
        if not isinstance(found, Scorer):
            raise TypeError(f"{point.value} is no scorer: make it one with @scorer")
        found.options.model_json_schema()
    except Exception as error:  # noqa: BLE001  # a package of others may fail in any way while it is imported
        log.warning("scorer %s cannot be used: %s: %s", _source(point), type(error).__name__, error)
        return None
    return found


def _source(point: EntryPoint) -> str:
    return f"{point.name} = {point.value}" + (f" of {point.dist.name}" if point.dist else "")
