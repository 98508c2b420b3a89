"""Discovery of this host's devices without torch: `nvidia-smi`, then `CUDA_VISIBLE_DEVICES`, else CPU slots.

The launcher must never initialise CUDA, nor must a worker's parent process: both only parse text here.
"""

import logging
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from config.queues import Slot
from config.settings import Settings
from workers.devices.allocation import allocate

log = logging.getLogger(__name__)

_DEVICE = re.compile(r"0|[1-9][0-9]{0,3}|GPU-[0-9A-Za-z-]+|MIG-[0-9A-Za-z/-]+")
#: Slots of a host without GPUs.
DEFAULT_CPU_SLOTS = 2
#: nvidia-smi takes seconds on a busy host; a wedged driver makes it hang.
NVIDIA_SMI_TIMEOUT_S = 20.0
#: Matrix shapes for which a CPU slot caches the generated code, half a megabyte each. By default torch and oneDNN cache
#: 1,024 shapes each: a worker then grows by half a gigabyte while it meets new shapes. Regenerating the code of a shape
#: takes 0.4 ms, and a forward pass of a model needs six to ten shapes.
KEPT_SHAPES = 32


@dataclass(frozen=True, slots=True)
class PinnedSlot:
    """A slot, with the devices and threads that its worker is pinned to."""

    slot: Slot
    devices: tuple[str, ...]
    threads: int | None
    """OMP threads of a CPU slot; None for a GPU slot: the library chooses."""

    def environment(self) -> dict[str, str]:
        """Return the variables to set before the worker's Python starts: no library can then see, or use, the devices
        and threads of other slots."""
        pinned = {"CUDA_VISIBLE_DEVICES": ",".join(self.devices)}
        if self.devices:
            pinned["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi; CUDA's default puts the fastest first
        if self.threads is not None:
            pinned |= {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
            pinned |= dict.fromkeys(("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"), str(KEPT_SHAPES))
        return pinned


@dataclass(frozen=True, slots=True)
class Inventory:
    """The slots of this host, with a sentence that states their origin."""

    slots: tuple[PinnedSlot, ...]
    sentence: str
    warning: str = ""


def discover_gpus(environment: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the usable GPUs, as CUDA_VISIBLE_DEVICES names them, and the source of this information."""
    listed = _nvidia_smi(environment)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return listed, "nvidia-smi" if listed else "nvidia-smi lists none"
    # Parsed as CUDA does: the list ends at the first entry that is not a device, so "-1" and "" hide every GPU.
    chosen: list[str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if not _DEVICE.fullmatch(entry) or (entry.isdigit() and listed and entry not in listed):
            break
        if entry not in chosen:
            chosen.append(entry)
    return tuple(chosen), f"CUDA_VISIBLE_DEVICES={visible}"


def _nvidia_smi(environment: Mapping[str, str]) -> tuple[str, ...]:
    command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        run = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        return ()
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("nvidia-smi does not answer; its GPUs are not used: %s", error)
        return ()
    if run.returncode != 0:
        log.warning("nvidia-smi fails (exit code %d); its GPUs are not used: %s", run.returncode, run.stderr.strip())
        return ()
    return tuple(line.strip() for line in run.stdout.splitlines() if line.strip().isdigit())


def take_inventory(settings: Settings, environment: Mapping[str, str]) -> Inventory:
    """Return the slots that this host should run, from its devices and `ASSAY_SLOTS`."""
    forced_cpu, _, count = settings.slots.rpartition(":")
    gpus, source = ((), "ASSAY_SLOTS") if forced_cpu else discover_gpus(environment)
    workers = int(count) if count else len(gpus) or DEFAULT_CPU_SLOTS
    allocation = allocate(gpus, workers)
    threads = None
    if not gpus:
        given = environment.get("OMP_NUM_THREADS", "")
        threads = int(given) if re.fullmatch(r"[1-9][0-9]*", given) else max(1, _usable_cores() // workers)
    slots = tuple(
        PinnedSlot(Slot(settings.node, index), devices, threads) for index, devices in enumerate(allocation.groups)
    )
    if gpus:
        sentence = f"{workers} slots on {len(gpus)} GPUs ({source})"
    else:
        sentence = f"{workers} CPU slots of {threads} threads ({source})"
    return Inventory(slots, sentence, allocation.note)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
