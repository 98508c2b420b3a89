"""Slots requested for a single run: by NUM_WORKERS, TOTAL_GPUS, GPUS_PER_WORKER, or the command's own flag."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.errors import Permanent
from workers.devices.discovery import DEFAULT_CPU_SLOTS, discover_gpus

_FLAGS = ("--num_workers", "--num-workers")


@dataclass(frozen=True, slots=True)
class Request:
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that make the launcher start the requested slots."""
    note: str = ""
    """Note for the user: this machine has fewer GPUs than requested."""


def requested_slots(environment: Mapping[str, str], argv: Sequence[str]) -> Request:
    """Return the requested slots. Raises Permanent for a value that is not a number."""
    workers = _flag(argv) or _number(environment, "NUM_WORKERS", 1)
    total, each = _number(environment, "TOTAL_GPUS", 0), _number(environment, "GPUS_PER_WORKER", 1)
    if workers is None and total is None and each is None:
        return Request()
    found, _ = discover_gpus(environment)
    gpus = found if total is None else found[:total]
    if workers is None:
        workers = max(1, len(gpus) // each) if gpus and each else len(gpus) or DEFAULT_CPU_SLOTS
    wanted = workers * each if each else total or 0
    note = ""
    if wanted > len(found):
        shortage = f"{wanted} GPUs were requested, but this machine has {len(found)}"
        note = f"{shortage}: workers share them." if found else f"{shortage}: the workers are CPU slots."
    if each:
        gpus = gpus[: workers * each]
    if not gpus:
        return Request({"ASSAY_SLOTS": f"cpu:{workers}"}, note)
    return Request({"ASSAY_SLOTS": str(workers), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}, note)


def _flag(argv: Sequence[str]) -> int | None:
    """Return the value of the flag; None if it is missing or not a number: the command validates its own flags."""
    value = ""
    for word, following in zip(argv, [*argv[1:], ""], strict=False):
        name, equals, given = word.partition("=")
        if name in _FLAGS:
            value = given if equals else following
    return int(value) if value.isdigit() and int(value) else None


def _number(environment: Mapping[str, str], name: str, least: int) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit() or int(text) < least:
        raise Permanent(f"{name}: must be a whole number from {least} on (it is {text!r})")
    return int(text)
