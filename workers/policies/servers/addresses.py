"""Addresses of the policy servers, and their assignment to device slots."""

from collections.abc import Sequence

from config.settings import Settings
from workers.policies.address import Address


def server_urls(settings: Settings, slots: int) -> tuple[str, ...]:
    """Return the URLs in the settings; without any, one per device slot of this host, for servers started by
    `python -m workers.launch policies`."""
    if settings.policy_urls:
        return tuple(settings.policy_urls.split(","))
    return tuple(f"ws://127.0.0.1:{settings.policy_port + slot}" for slot in range(slots))


def servers_of_slot(urls: Sequence[str], slot: int, slots: int) -> tuple[str, ...]:
    """Return the servers of a slot. Every server belongs to one slot, and the numbers of servers of two slots differ by
    at most one; with fewer servers than slots, the last slots have no server."""
    return tuple(urls[slot::slots])


def addresses(settings: Settings, urls: Sequence[str]) -> list[Address]:
    return [Address(url, settings.policy_api_key, settings.policy_version) for url in urls]
