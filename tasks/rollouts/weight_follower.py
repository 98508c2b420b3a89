"""Weight follower of a device: reads a rollout's new weights while it generates, swaps them in between two tokens, and
confirms the version or reports its failure.

Redis holds the target version (`weight_versions.py`): a device polls it many times a second while it generates, and
once before it begins. An idle device is notified by a message (`task.py`), which may be lost: then the device loads the
weights with its next work.
"""

import logging
import time
from threading import Thread

from redis.exceptions import RedisError

from tasks.errors import AssayError, CannotFollow, StorageUnavailable
from tasks.inference.engine import Engine, Interrupt, ModelRef, Weights
from tasks.jobs.execution.retry_redis import retry_redis
from tasks.rollouts.weight_versions import SyncConfig, Version, Versions

log = logging.getLogger(__name__)

#: Seconds between two checks for a new version.
LOOK_S = 0.01
#: Seconds between two reports that the device is loading, while answers are completed with the old weights.
REPORT_S = 1.0


class WeightFollower:
    """Source of new weights for a rollout on a device; implements `tasks.inference.engine.Renewal`."""

    def __init__(
        self,
        versions: Versions,
        rollout: str,
        device: str,
        engine: Engine,
        model: ModelRef,
        interrupt: Interrupt = "continue",
    ) -> None:
        self.interrupt: Interrupt = interrupt
        self._versions = versions
        self._rollout = rollout
        self._device = device
        self._engine = engine
        self._model = model
        self._serial: int | None = None
        self._is_due = False
        self._reading: _Reading | None = None
        self._looked_at = self._reported_at = float("-inf")

    def is_due(self) -> bool:
        """Return whether a newer version is ready: its files were read, or cannot be read. It then stays true until
        `renew`: while answers are completed with the old weights, no further answers may begin."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return self._is_due
        self._looked_at = now
        try:
            serial = self._versions.serial(self._rollout)
            if serial == self._serial:
                self._is_due = False
                return False
            if not self._reading or self._reading.version.serial != serial:
                self._reading = _Reading(self._engine, self._versions.current(self._rollout))
            if now - self._reported_at > REPORT_S:
                self._reported_at = now
                self._versions.report_loading(self._rollout, self._device, self._reading.version)
            self._is_due = not self._reading.is_under_way
        except RedisError as error:  # the last known state stays valid
            log.debug("cannot check for new weights: %s", error)
        return self._is_due

    def renew(self) -> None:
        """Load the rollout's target version and confirm it. Raises CannotFollow when every try has failed."""
        while True:
            status = retry_redis(lambda: self._versions.status(self._rollout))
            version = status.version
            try:
                is_held = self._holds(version)
            except CannotFollow:
                raise
            except AssayError as error:  # the model itself cannot be loaded
                self._fail(version, str(error))
                raise
            if is_held:
                entry = status.devices.get(self._device)
                is_known = entry is not None and entry.state == "following" and entry.number == version.number
                if not is_known and not self._confirm(version, 0.0):
                    continue
            elif not self._take(version, status.config):
                continue
            self._serial, self._is_due = version.serial, False
            return

    def _holds(self, version: Version) -> bool:
        name = self._engine.version(self._model)
        if version.serial:
            return name == version.name
        if name.startswith(f"{self._rollout}:"):  # every announced version was rolled back
            self._engine.drop(self._model)
            if self._serial is not None:  # the current run still uses the dropped weights
                self._serial = None
                raise CannotFollow(f"{self._device} reloads the original model: its version was rolled back.")
            self._engine.version(self._model)
        return True

    def _take(self, version: Version, config: SyncConfig) -> bool:
        """Load a version, with retries. Returns whether the device holds it; False if it is no longer the target."""
        began = self._reading.began if self._reading else time.monotonic()
        reason = ""
        for attempt in range(config.max_sync_retries):
            if attempt:
                time.sleep(config.sync_retry_delay)
            if not retry_redis(lambda: self._versions.report_loading(self._rollout, self._device, version)):
                return False
            try:
                weights = self._read(version, config.sync_timeout)
                if retry_redis(lambda: self._versions.serial(self._rollout)) != version.serial:
                    return False
                self._engine.swap(self._model, weights, version.name)
            except AssayError as error:
                reason = str(error)
                log.warning("version %d of rollout %s, try %d: %s", version.number, self._rollout, attempt + 1, reason)
                continue
            seconds = time.monotonic() - began
            log.info("rollout %s is at version %d after %.3f s", self._rollout, version.number, seconds)
            return self._confirm(version, seconds)
        self._fail(version, reason)
        if retry_redis(lambda: self._versions.current(self._rollout)).serial == version.serial:
            raise CannotFollow(f"{self._device} could not take version {version.number}: {reason}")
        return False

    def _read(self, version: Version, timeout_s: float) -> Weights:
        """Return the weights read in the background, or read them now. A read that times out is abandoned."""
        reading, self._reading = self._reading, None
        if reading is None or reading.version.serial != version.serial:
            reading = _Reading(self._engine, version)
        return reading.wait(timeout_s)

    def _confirm(self, version: Version, seconds: float) -> bool:
        return retry_redis(lambda: self._versions.confirm(self._rollout, self._device, version, seconds))

    def _fail(self, version: Version, reason: str) -> None:
        retry_redis(lambda: self._versions.fail(self._rollout, self._device, version, reason))


class _Reading:
    """Background read of weights into memory, in a thread of its own."""

    def __init__(self, engine: Engine, version: Version) -> None:
        self.version = version
        self.began = time.monotonic()
        self._engine = engine
        self._found: Weights | Exception | None = None
        self._thread = Thread(target=self._run, name="weights", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._engine.read(self.version.uri, self.version.sha256)
        except Exception as error:  # noqa: BLE001  # raised again by `wait`
            self._found = error

    @property
    def is_under_way(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout_s: float) -> Weights:
        self._thread.join(timeout_s)
        if self._found is None:
            raise StorageUnavailable(f"{self.version.uri} was not read within {timeout_s:g} s")
        if isinstance(self._found, Exception):
            raise self._found
        return self._found
