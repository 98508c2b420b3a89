"""What a run was measured on: machine, versions, commit. Read where the run is reported, but for the devices: those
were counted when it was planned, and some may be away by then."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tasks.registry import Worker

_ROOT = Path(__file__).parent.parent.parent
_VERSIONS = ("celery", "redis", "flask", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Machine:
    processor: str
    cores: int
    memory_gb: float
    system: str
    slots: tuple[str, ...]
    """Queues of the device slots."""
    gpus: tuple[str, ...]
    versions: Mapping[str, str]
    commit: str

    @property
    def basis(self) -> str:
        """What must be the same for two runs to be compared; not the versions, whose effect one wants to see."""
        return f"{self.processor}|{self.cores}|{len(self.slots)}|{','.join(self.gpus)}"


def describe(slots: Sequence[str], redis_version: str, gpus: Sequence[str] = ()) -> Machine:
    """This machine, with the devices that a run was planned for."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = {"python": platform.python_version(), "redis-server": redis_version, **installed(_VERSIONS)}
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_gb=round(pages / 1e9, 1),
        system=f"{platform.system()} {platform.release()}",
        slots=tuple(slots),
        gpus=tuple(gpus),
        versions=versions,
        commit=_commit(),
    )


def gpus_of(devices: Sequence[Worker]) -> tuple[str, ...]:
    """Each once, by its product: another at the same index is another machine. By index where the driver is mute."""
    named = {gpu.uuid: f"{gpu.name} ({gpu.memory_total_mb} MB)" for worker in devices for gpu in worker.gpus}
    mute = (device for worker in devices if not worker.gpus for device in worker.devices)
    return (*named.values(), *dict.fromkeys(mute))


def installed(packages: Sequence[str]) -> dict[str, str]:
    """The versions of those that are there."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _commit() -> str:
    """Of the checkout that this code runs from; with a `+` where it was changed since."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=_ROOT, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown: not a git checkout"
    return found.stdout.strip()
