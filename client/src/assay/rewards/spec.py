"""Parses a reward: the spec of a `score` job, a list of scorers, a JSON file with either, or the name of a reward that
is configured on the server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from assay.rewards.length_penalty.trainer_values import as_plain
from assay.submission import Scorer, score_spec

#: A spec, a list of scorers, the path of a JSON file with either, or the name of a reward of the server.
RewardLike = Union[Mapping[str, Any], Sequence[Scorer], str, "os.PathLike[str]"]

#: Penalties that depend on the length of a response, and penalties that compare a response with its group.
_BY_LENGTH = ("group_length", "overlong_buffer", "soft_overlong")
_BY_GROUP = ("group_length",)


@dataclass(frozen=True)
class RewardSpec:
    spec: Mapping[str, Any]
    fill: float = 0.0
    """Score of an invalid item for trainers that accept only numbers."""

    @property
    def compares_group(self) -> bool:
        """Whether the reward of a response depends on the other responses of its group."""
        return bool(self.spec.get("group_statistics")) or any(name in _BY_GROUP for name in self._penalties)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts in each result, without the details of a judge (`judge.spread`, ...)."""
        named = [str(each.get("as") or each["name"]) for each in self.spec.get("scorers", ())]
        if named and any(self.spec.get(each) for each in ("judge", "penalties", "group_statistics")):
            named.append("base")  # with scorers alone it would repeat the score
        if self.spec.get("judge"):
            named.append("judge")
        named += self._penalties
        if self.spec.get("tokenizer") or any(name in _BY_LENGTH for name in self._penalties):
            named.append("response_length")
        if any(name in _BY_GROUP for name in self._penalties):
            named.append("median_length")
        if self.spec.get("group_statistics"):
            named += ["group_mean", "group_std", "advantage"]
        return tuple(dict.fromkeys(named))

    @property
    def _penalties(self) -> list[str]:
        return [str(each["name"]) for each in self.spec.get("penalties", ())]


def parse_reward(given: RewardLike) -> RewardSpec | str:
    """Parse a reward to its spec, or to the name of a reward of the server. Raise ValueError if it is neither."""
    if isinstance(given, str) and given.lstrip()[:1] in ("{", "["):
        given = json.loads(given)
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(".json")):
        with open(given, encoding="utf-8") as file:
            given = json.load(file)
    if isinstance(given, str):
        if not given.strip():
            raise ValueError("The reward is empty: give a spec, a list of scorers, a JSON file, or a server's reward.")
        return given.strip()
    if isinstance(given, Mapping):
        whole = as_plain(given)
        return _reward_spec(whole["spec"], whole.get("fill")) if "spec" in whole else _reward_spec(whole)
    if isinstance(given, Sequence) and given:
        return _reward_spec({"scorers": as_plain(given)})
    raise ValueError(f"{given!r} is not a reward: give a spec, a list of scorers, a JSON file, or a server's reward.")


def named_reward(name: str, listed: Sequence[Mapping[str, Any]]) -> RewardSpec:
    """Find a reward by name in the list of `GET /v1/rewards`. Raise ValueError if the server does not have it."""
    for each in listed:
        if each["name"] == name:
            return _reward_spec(each["spec"], each.get("fill"))
    known = ", ".join(str(each["name"]) for each in listed) or "no rewards; configure them in ASSAY_REWARDS_FILE"
    raise ValueError(f"The server has no reward {name!r}; it has: {known}. A scorer is given as a list: [{name!r}].")


def _reward_spec(spec: Mapping[str, Any], fill: float | None = None) -> RewardSpec:
    """Build the reward; a scorer given by name alone is expanded."""
    named = score_spec(spec["scorers"]) if spec.get("scorers") else {}
    return RewardSpec({**spec, **named}, float(fill or 0.0))
