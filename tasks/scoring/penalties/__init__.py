"""Registry of the built-in penalties by name. `tasks/scoring/penalty.py` defines the type."""

import difflib
from typing import Any

from tasks.scoring.penalties.group_length import group_length
from tasks.scoring.penalties.overlong_buffer import overlong_buffer
from tasks.scoring.penalties.repetition import repetition
from tasks.scoring.penalties.soft_overlong import soft_overlong
from tasks.scoring.penalty import GroupPenalty, ItemPenalty

AnyPenalty = ItemPenalty[Any] | GroupPenalty[Any]

BUILT_IN: tuple[AnyPenalty, ...] = (group_length, overlong_buffer, soft_overlong, repetition)

_BY_NAME = {each.name: each for each in BUILT_IN}


def find(name: str) -> AnyPenalty:
    """Return the penalty of this name. Raises ValueError that suggests the closest name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    close = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown penalty {name!r}; {hint}penalties are {', '.join(sorted(_BY_NAME))}")
