"""Record of the machine that a run was measured on: hardware, software versions and commit.

It is read in the process that writes the report. The devices are those of the plan: some may have left since then.
"""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tasks.worker_registry import Worker

_ROOT = Path(__file__).parent.parent.parent
_VERSIONS = ("celery", "redis", "flask", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Machine:
    processor: str
    cores: int
    memory_gb: float
    system: str
    slots: tuple[str, ...]
    """Queue names of the device slots."""
    gpus: tuple[str, ...]
    versions: Mapping[str, str]
    commit: str

    @property
    def hardware(self) -> str:
        """Processor, cores, memory and operating system, as reports print them."""
        return f"{self.processor}, {self.cores} cores, {self.memory_gb:g} GB, {self.system}"

    @property
    def versions_text(self) -> str:
        """Names and versions of the installed software, as reports print them."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items() if version)

    @property
    def basis(self) -> str:
        """Key of comparable runs: two runs are compared if it is equal. Versions are left out: their effect is of
        interest."""
        return f"{self.processor}|{self.cores}|{len(self.slots)}|{','.join(self.gpus)}"


def describe(slots: Sequence[str], redis_version: str, gpus: Sequence[str] = ()) -> Machine:
    """Describe this machine, with the device slots that the run was planned for."""
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
    """Return each GPU once, by its product name: a different product makes a different machine.

    Devices with a driver that does not report a product are named by their index."""
    products = {gpu.uuid: f"{gpu.name} ({gpu.memory_total_mb} MB)" for worker in devices for gpu in worker.gpus}
    unnamed = (device for worker in devices if not worker.gpus for device in worker.devices)
    return (*products.values(), *dict.fromkeys(unnamed))


def installed(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
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
    """Return the commit of this checkout, with a `+` if files were modified since."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown: not a git checkout"
    return found.stdout.strip()
