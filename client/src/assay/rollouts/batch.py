"""A batch as the server hands it out, as a trainer reads it: samples in a list, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: What a generated sample is given of its group.
_OF_GROUP = ("group_id", "index", "item", "prompt_ids", "param_version")


def samples_of(answer: Mapping[str, Any]) -> list[Any]:
    """Samples from outside as they were put; generated ones with what they share with their group."""
    found: list[Any] = []
    for group in answer["groups"]:
        if group.get("item") is None:
            found += group["samples"]
        else:
            shared = {name: group.get(name) for name in _OF_GROUP}
            found += [{**shared, **sample} for sample in group["samples"]]
    return found


def metadata_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """For each sample its version, group and metadata, in the same order; and how fresh they are."""
    groups: Sequence[Mapping[str, Any]] = answer["groups"]
    versions = [group["param_version"] for group in groups for _ in group["samples"]]
    current = answer["current_version"]
    ages = [max(0, current - version) for version in versions]
    return {
        "batch": answer["batch"],
        "current_param_version": current,
        "dropped_stale_samples": answer["dropped"],
        "queue_size": answer["queued"],
        "param_versions": versions,
        "ids": [f"{group['id']}.{group['first'] + at}" for group in groups for at in range(len(group["samples"]))],
        "group_ids": [group.get("group_id") for group in groups for _ in group["samples"]],
        "rollout_metadata": [group.get("metadata") or {} for group in groups for _ in group["samples"]],
        "freshness/avg_sample_age": sum(ages) / len(ages),
        "freshness/max_sample_age": max(ages),
        "freshness/min_sample_age": min(ages),
        "freshness/stale_samples_ratio": sum(age > 1 for age in ages) / len(ages),
        "version_diversity": len(set(versions)),
    }
