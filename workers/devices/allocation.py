"""Allocation of devices to workers: pure arithmetic. `workers.devices.discovery` finds the devices of the machine."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocation:
    groups: tuple[tuple[str, ...], ...]
    """The devices of worker 0, 1, ...; empty groups are CPU slots."""
    note: str = ""
    """Note for the operator: an uneven division, or shared GPUs."""
    shared: bool = False


def allocate(devices: Sequence[str], workers: int) -> Allocation:
    """Assign `len(devices) // workers` contiguous, exclusive devices to each worker. After an uneven division
    the first workers get one more device each.

    With more workers than devices, workers share devices, round robin.
    """
    if workers < 1:
        raise ValueError("at least one worker is needed")
    if not devices:
        return Allocation(((),) * workers)
    if workers > len(devices):
        groups = tuple((devices[worker % len(devices)],) for worker in range(workers))
        return Allocation(
            groups, f"{workers} workers for {len(devices)} GPUs: workers share GPUs and compete for their memory.", True
        )
    each, rest = divmod(len(devices), workers)
    groups_list, start = [], 0
    for worker in range(workers):
        size = each + (worker < rest)
        groups_list.append(tuple(devices[start : start + size]))
        start += size
    note = (
        f"{len(devices)} GPUs do not divide by {workers} workers: the first {rest} get {each + 1}, the others {each}."
    )
    return Allocation(tuple(groups_list), note if rest else "")
