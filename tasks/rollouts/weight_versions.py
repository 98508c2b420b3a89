"""Weight sync of a rollout: the target version of its devices and their progress, stored in the state Redis.

A trainer announces a version; every device loads and confirms it, or reports the cause of its failure. If no device
can load it, it is rolled back. The rules are in `scripts/include/syncs.lua`. Not covered: loading weights, which is in
`weight_follower.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from redis import Redis

from config import keys
from tasks import lua
from tasks.errors import Conflict, InvalidRequest
from tasks.inference.engine import ModelRef

_SCRIPTS = Path(__file__).with_name("scripts")
_NAMES = ("open_sync", "announce_weights", "read_sync", "report_device", "sweep_weights")

SyncState = Literal["synced", "syncing", "rolled_back"]
DeviceState = Literal["following", "awaited", "left"]


@dataclass(frozen=True, slots=True)
class SyncConfig:
    max_sync_retries: int = 3
    """Maximum tries of a device, including the first try."""
    sync_timeout: float = 10.0
    """Timeout of a try in seconds. A device without a report for the duration of its tries has left."""
    sync_retry_delay: float = 0.1
    """Seconds between two tries."""

    def __post_init__(self) -> None:
        if self.max_sync_retries < 1:
            raise InvalidRequest("must be at least 1", "max_sync_retries")
        if self.sync_timeout <= 0:
            raise InvalidRequest("must be above 0", "sync_timeout")
        if self.sync_retry_delay < 0:
            raise InvalidRequest("must not be negative", "sync_retry_delay")


_DEFAULTS = SyncConfig()


@dataclass(frozen=True, slots=True)
class Version:
    rollout: str
    number: int = 0
    serial: int = 0
    """Serial number of the announcement: a version that was rolled back may be announced again with other weights. 0:
    no announcement, the model has its original weights."""
    uri: str = ""
    sha256: str = ""

    @property
    def name(self) -> str:
        """Name of the weights in an engine; empty for the model's original weights."""
        return f"{self.rollout}:{self.number}:{self.serial}" if self.serial else ""


def number_of(name: str) -> int:
    """Parse the version number from an engine's name of the weights; 0 for a model's original weights."""
    parts = name.split(":")
    return int(parts[1]) if len(parts) == 3 else 0


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    state: DeviceState
    number: int
    """Version that the device confirmed last."""
    latency_s: float
    """Seconds from its start on that version to the confirmation."""
    reason: str
    """Error because of which the device left."""


@dataclass(frozen=True, slots=True)
class SyncStatus:
    version: Version
    state: SyncState
    reason: str
    """Error because of which the last version was rolled back."""
    failed_number: int | None
    """Number of the version that was rolled back last."""
    sync_s: float
    """Seconds from the last announcement to the last device's report."""
    syncs: int
    rollbacks: int
    config: SyncConfig
    devices: Mapping[str, DeviceStatus] = field(default_factory=dict)
    model: ModelRef | None = None


class Versions:
    def __init__(self, state: Redis) -> None:
        self._state = state
        self._scripts = {name: state.register_script(lua.load(_SCRIPTS / f"{name}.lua")) for name in _NAMES}

    def open(self, rollout: str, model: ModelRef | None, config: SyncConfig = _DEFAULTS, number: int = 0) -> None:
        """Store a new rollout: the model's original weights count as version `number`. Idempotent."""
        self._run("open_sync", rollout, json.dumps(asdict(model)) if model else "", *_seconds(config), number)

    def announce(
        self,
        rollout: str,
        number: int,
        uri: str,
        sha256: str,
        devices: Sequence[str],
        config: SyncConfig | None = None,
        owned: bool = False,
    ) -> Version:
        """Announce new weights to the devices. `owned`: the files belong to the server, which deletes them when no
        version needs them. Idempotent. Raises Conflict if this version with other weights, or a later version, was
        announced before."""
        config = config or self.status(rollout).config
        said, found, entries = self._run(
            "announce_weights", rollout, number, uri, sha256, "1" if owned else "", *_seconds(config), *devices
        )
        status = _status(rollout, found, entries)
        if said == "stale":
            raise Conflict(f"Version {number} is not new: the rollout is at version {status.version.number}.")
        return status.version

    def current(self, rollout: str) -> Version:
        """Return the target version of the devices."""
        return self.status(rollout).version

    def serial(self, rollout: str) -> int:
        """Return the serial of the target version by a cheap read, which does not check whether a sync has failed."""
        target = self._state.hget(keys.rollout_versions(rollout), "target")
        return int(json.loads(str(target))["serial"]) if target else 0

    def report_loading(self, rollout: str, device: str, version: Version) -> bool:
        """Report that the device is loading the version. Returns whether it is still the target."""
        return self._report(rollout, device, version, "loading")

    def confirm(self, rollout: str, device: str, version: Version, latency_s: float) -> bool:
        """Report that the device holds the version. Returns whether it is still the target."""
        return self._report(rollout, device, version, "holds", f"{latency_s:.6f}")

    def fail(self, rollout: str, device: str, version: Version, reason: str) -> bool:
        """Report that the device cannot load the version, and leaves. Returns whether it was still the target."""
        return self._report(rollout, device, version, "failed", reason[:500])

    def status(self, rollout: str) -> SyncStatus:
        _, found, entries = self._run("read_sync", rollout)
        return _status(rollout, found, entries)

    def left(self, rollout: str) -> set[str]:
        """Return the devices that have left and get no work of the rollout."""
        return {str(name) for name in self._state.smembers(keys.rollout_left(rollout))}

    def sweep(self, rollout: str) -> list[str]:
        """Return the URIs of the server's own files that no version names any longer. Returns each URI only once."""
        return [str(uri) for uri in self._scripts["sweep_weights"](args=[rollout])]

    def _report(self, rollout: str, device: str, version: Version, report: str, detail: str = "") -> bool:
        said, _, _ = self._run("report_device", rollout, device, version.serial, report, detail)
        return said != "passed"

    def _run(self, script: str, *arguments: Any) -> tuple[str, dict[str, str], dict[str, str]]:
        said, found, entries = self._scripts[script](args=list(arguments))
        return said, _pairs(found), _pairs(entries)


def _seconds(config: SyncConfig) -> tuple[Any, ...]:
    return config.max_sync_retries, config.sync_timeout, config.sync_retry_delay


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _status(rollout: str, found: Mapping[str, str], entries: Mapping[str, str]) -> SyncStatus:
    target = json.loads(found["target"])
    devices = {name: json.loads(entry) for name, entry in sorted(entries.items())}
    state: Any = found["state"]
    return SyncStatus(
        version=Version(rollout, int(target["number"]), int(target["serial"]), target["uri"], target["sha256"]),
        state=state,
        reason=found["reason"],
        failed_number=int(found["failed_number"]) if "failed_number" in found else None,
        sync_s=float(found.get("sync_s", 0)),
        syncs=int(found.get("syncs", 0)),
        rollbacks=int(found.get("rollbacks", 0)),
        config=SyncConfig(int(found["tries"]), float(found["timeout_s"]), float(found["delay_s"])),
        devices={
            name: DeviceStatus(each["state"], int(each["number"]), float(each["latency_s"]), each["reason"])
            for name, each in devices.items()
        },
        model=ModelRef(**json.loads(found["model"])) if "model" in found else None,
    )
