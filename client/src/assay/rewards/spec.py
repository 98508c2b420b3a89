"""What a reward is: the spec of a `score` job, given as such, as a list of scorers, in a JSON file, or by the name that
the server knows it by."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from assay.rewards.foreign import as_plain
from assay.submission import Scorer, scoring

#: A spec, scorers, the path of a JSON file that holds either, or a name of the server's.
RewardLike = Union[Mapping[str, Any], Sequence[Scorer], str, "os.PathLike[str]"]

#: Penalties that look at how long a response is, and those that compare it with its group.
_BY_LENGTH = ("group_length", "overlong_buffer", "soft_overlong")
_BY_GROUP = ("group_length",)


@dataclass(frozen=True)
class RewardSpec:
    spec: Mapping[str, Any]
    fill: float = 0.0
    """What stands for an invalid item where a trainer takes numbers only."""

    @property
    def compares(self) -> bool:
        """Whether a reward depends on the other answers to the same prompt."""
        return bool(self.spec.get("group_statistics")) or any(name in _BY_GROUP for name in self._penalties)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts that results have; not the many of a judge's own (`judge.spread`, ...)."""
        named = [str(each.get("as") or each["name"]) for each in self.spec.get("scorers", ())]
        if named and any(self.spec.get(each) for each in ("judge", "penalties", "group_statistics")):
            named.append("base")  # scorers alone have no need of it: it is their score
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


def read_reward(given: RewardLike) -> RewardSpec | str:
    """The reward, or the name under which the server has it. Raises ValueError for what can be neither."""
    if isinstance(given, str) and given.lstrip()[:1] in ("{", "["):
        given = json.loads(given)
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith(".json")):
        with open(given, encoding="utf-8") as file:
            given = json.load(file)
    if isinstance(given, str):
        if not given.strip():
            raise ValueError("Say which reward: a spec, a list of scorers, a JSON file, or a name of the server's.")
        return given.strip()
    if isinstance(given, Mapping):
        whole = as_plain(given)
        return _reward_of(whole["spec"], whole.get("fill")) if "spec" in whole else _reward_of(whole)
    if isinstance(given, Sequence) and given:
        return _reward_of({"scorers": as_plain(given)})
    raise ValueError(f"{given!r} is no reward: give a spec, a list of scorers, a JSON file, or a name of the server's.")


def named_reward(name: str, listed: Sequence[Mapping[str, Any]]) -> RewardSpec:
    """From what `GET /v1/rewards` lists. Raises ValueError."""
    for each in listed:
        if each["name"] == name:
            return _reward_of(each["spec"], each.get("fill"))
    known = ", ".join(str(each["name"]) for each in listed) or "none; ASSAY_REWARDS_FILE names the file that lists them"
    raise ValueError(f"The server has no reward {name!r}; it has: {known}. Scorers are given as a list: [{name!r}].")


def _reward_of(spec: Mapping[str, Any], fill: float | None = None) -> RewardSpec:
    """Scorers may be given by their names alone."""
    named = scoring(spec["scorers"]) if spec.get("scorers") else {}
    return RewardSpec({**spec, **named}, float(fill or 0.0))
