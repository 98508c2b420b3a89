"""From what trainers pass around to items of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from assay.rewards.question import as_reference

#: Columns of a dataset that are looked for, in this order.
REFERENCE_COLUMNS = ("reference", "answer", "solution", "ground_truth")


def make_items(
    responses: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    references: Sequence[Any] | None = None,
    groups: Sequence[Any] | None = None,
    response_tokens: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """One item per response; texts or message lists. Without groups, equal prompts make one.

    Raises ValueError when the lists differ in length.
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
    """The column that holds right answers. Raises KeyError for one that was named and is not there."""
    if name is not None:
        if name not in columns:
            raise KeyError(f"the dataset has no column {name!r}; it has {', '.join(sorted(columns)) or 'none'}")
        found: Sequence[Any] = columns[name]
        return found
    return next((columns[each] for each in REFERENCE_COLUMNS if columns.get(each) is not None), None)


def _chat(value: Any) -> Any:
    """A text, or messages with what the server reads of them."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        value = [value]
    return [{name: each for name, each in dict(message).items() if each is not None} for message in value]


def _with_short_groups(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A whole prompt is a long name for a group."""
    numbers: dict[str, str] = {}
    for item in items:
        if "group_id" in item:
            item["group_id"] = numbers.setdefault(item["group_id"], str(len(numbers)))
    return items
