"""Converts the arguments that trainers pass to reward functions into items of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from assay.rewards.length_penalty.question import as_reference

#: Dataset columns that may hold the references, by precedence.
REFERENCE_COLUMNS = ("reference", "answer", "solution", "ground_truth")


def make_items(
    responses: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    references: Sequence[Any] | None = None,
    groups: Sequence[Any] | None = None,
    response_tokens: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Build an item per response. Responses and prompts are texts or message lists. Without `groups`, responses to
    equal prompts form a group.

    Raise ValueError if the lists differ in length.
    """
    given = {"prompts": prompts, "references": references, "groups": groups, "response_tokens": response_tokens}
    for name, values in given.items():
        if values is not None and len(values) != len(responses):
            raise ValueError(f"There are {len(responses)} responses and {len(values)} {name}.")
    items = []
    for index, response in enumerate(responses):
        item: dict[str, Any] = {"response": _chat(response)}
        if prompts is not None and prompts[index] is not None:
            item["prompt"] = _chat(prompts[index])
        if references is not None and references[index] is not None:
            item["reference"] = as_reference(references[index])
        if groups is not None:
            item["group_id"] = str(groups[index])
        elif "prompt" in item:
            item["group_id"] = json.dumps(item["prompt"], sort_keys=True, default=str)
        if response_tokens is not None:
            item["response_tokens"] = int(response_tokens[index])
        items.append(item)
    return _with_short_groups(items)


def references_in(columns: Mapping[str, Any], name: str | None) -> Sequence[Any] | None:
    """Return the dataset column that holds the references. Raise KeyError if the column `name` does not exist."""
    if name is not None:
        if name not in columns:
            raise KeyError(f"the dataset has no column {name!r}; it has {', '.join(sorted(columns)) or 'none'}")
        found: Sequence[Any] = columns[name]
        return found
    return next((columns[each] for each in REFERENCE_COLUMNS if columns.get(each) is not None), None)


def _chat(value: Any) -> Any:
    """Return a text unchanged, and messages as plain dicts without null fields."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        value = [value]
    return [{name: each for name, each in dict(message).items() if each is not None} for message in value]


def _with_short_groups(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace group ids by short numbers, as a group id may be a whole prompt."""
    numbers: dict[str, str] = {}
    for item in items:
        if "group_id" in item:
            item["group_id"] = numbers.setdefault(item["group_id"], str(len(numbers)))
    return items
