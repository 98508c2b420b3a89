"""Which policy servers there are, and which of them a device slot uses."""

from collections.abc import Sequence

from config.settings import Settings
from workers.policies.address import Address


def server_urls(settings: Settings, slots: int) -> tuple[str, ...]:
    """Those given; or one per device slot of this host, started by `python -m workers.launch policies`."""
    if settings.policy_urls:
        return tuple(settings.policy_urls.split(","))
    return tuple(f"ws://127.0.0.1:{settings.policy_port + slot}" for slot in range(slots))


def servers_of_slot(urls: Sequence[str], slot: int, slots: int) -> tuple[str, ...]:
    """Every server has one slot, and every slot as many as any other, or one more; with fewer servers than slots, the
    last ones have none."""
    return tuple(urls[slot::slots])


def addresses(settings: Settings, urls: Sequence[str]) -> list[Address]:
    return [Address(url, settings.policy_api_key, settings.policy_version) for url in urls]
