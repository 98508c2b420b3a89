"""Status of API profiles: limits in force, calls in flight, circuit, usage; and changes of the limits at run time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from redis import Redis

from config import keys
from config.profiles import Profile, Profiles, limits_of
from tasks.providers.circuit_status import as_circuit
from tasks.providers.limiter_format import HOLDER_S
from tasks.providers.usage import as_usage, today
from tasks.redis_clock import ask_time, parse_time


class ProfileStatuses:
    def __init__(self, state: Redis, profiles: Profiles) -> None:
        self._state, self._profiles = state, profiles

    def names(self) -> list[str]:
        return [profile.name for profile in self._profiles]

    def views(self) -> list[dict[str, Any]]:
        return self._views(list(self._profiles))

    def view(self, name: str) -> dict[str, Any]:
        """Raises UnknownProfile."""
        return self._views([self._profiles.get(name)])[0]

    def change(self, name: str, limits: Mapping[str, int | None]) -> None:
        """Set limits that every process applies from its next call on; None restores the profile's own limit. Raises
        UnknownProfile."""
        key = keys.api_limits(self._profiles.get(name).name)
        pipeline = self._state.pipeline()
        for limit, value in limits.items():
            if value is None:
                pipeline.hdel(key, limit)
            else:
                pipeline.hset(key, limit, value)
        pipeline.execute()

    def _views(self, profiles: Sequence[Profile]) -> list[dict[str, Any]]:
        pipeline = self._state.pipeline(transaction=False)
        for profile in profiles:
            for key in (keys.api_limits, keys.api_pace, keys.api_holders, keys.api_circuit):
                pipeline.hgetall(key(profile.name))
            pipeline.hgetall(keys.api_usage(profile.name, today()))
        ask_time(pipeline)
        *replies, time, offset = pipeline.execute()
        now = parse_time(time, offset)
        return [_view(profile, now, *replies[5 * at : 5 * at + 5]) for at, profile in enumerate(profiles)]


def _view(
    profile: Profile,
    now: float,
    live: Mapping[str, str],
    pace: Mapping[str, str],
    holders: Mapping[str, str],
    circuit: Mapping[str, str],
    usage: Mapping[str, str],
) -> dict[str, Any]:
    entries = [entry for text in holders.values() if now - (entry := json.loads(text))["at"] <= HOLDER_S]
    own = limits_of(profile)
    limits = own | {name: int(value) for name, value in live.items()}
    ceiling = min(float(pace.get("ceiling", profile.concurrency_start)), limits["concurrency"])
    return {
        "name": profile.name,
        "host": profile.host,
        "models": profile.models,
        "limits": limits,
        "changed": sorted(live),
        "in_flight": sum(entry["held"] for entry in entries),
        "waiting": sum(want["count"] for entry in entries for want in entry["wants"]),
        "ceiling": int(ceiling),
        "paused_s": max(float(pace.get("paused_until", 0)) - now, 0.0),
        "circuit": asdict(as_circuit(circuit, now)),
        "fallback": profile.fallback or None,
        "usage_today": asdict(as_usage(usage)),
    }
