"""Converts a batch of the server's response to the form for trainers: a list of samples, and a dict of metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Fields of a group that are copied to each of its generated samples.
_GROUP_FIELDS = ("group_id", "index", "item", "prompt_ids", "param_version")


def samples_of(answer: Mapping[str, Any]) -> list[Any]:
    """Return the samples: samples that a client put unchanged, generated samples with the fields of their group."""
    samples: list[Any] = []
    for group in answer["groups"]:
        if group.get("item") is None:
            samples += group["samples"]
        else:
            shared = {name: group.get(name) for name in _GROUP_FIELDS}
            samples += [{**shared, **sample} for sample in group["samples"]]
    return samples


def metadata_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the version, group and metadata of each sample, in the order of the samples, and the freshness figures."""
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
