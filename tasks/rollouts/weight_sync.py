"""A device that follows the versions of a rollout: reads new weights while it generates, takes them between two tokens,
says so, or says why it cannot.

Redis is the truth (`versions.py`): a device that generates looks there many times a second, and whoever begins to looks
first. One that idles is told by a message (`task.py`), which may be lost: then it follows when it is given work.
"""

import logging
import time
from threading import Thread

from redis.exceptions import RedisError

from tasks.errors import AssayError, CannotFollow, StorageUnavailable
from tasks.inference.engine import Engine, Interrupt, ModelRef, Weights
from tasks.jobs.execution.retry_redis import retry_redis
from tasks.rollouts.versions import SyncConfig, Version, Versions

log = logging.getLogger(__name__)

#: Seconds between two looks at whether there is a new version.
LOOK_S = 0.01
#: Seconds between two words to the others while answers end with the old weights.
HEAR_S = 1.0


class WeightFollower:
    """Implements tasks.inference.engine.Renewal for one rollout on one device."""

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
        self._looked_at = self._heard_at = float("-inf")

    def is_due(self) -> bool:
        """Whether there is a newer version and its files are read, or cannot be. Once it is, it stays so until it is
        taken: while answers end with the old weights no others may begin."""
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
            if now - self._heard_at > HEAR_S:
                self._heard_at = now
                self._versions.hear(self._rollout, self._device, self._reading.version)
            self._is_due = not self._reading.is_under_way
        except RedisError as error:  # what is known goes on to hold
            log.debug("cannot tell whether there are new weights: %s", error)
        return self._is_due

    def renew(self) -> None:
        """Hold the version that the rollout is at. Raises CannotFollow when all tries have failed."""
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
        if name.startswith(f"{self._rollout}:"):  # all others were taken back
            self._engine.drop(self._model)
            if self._serial is not None:  # a run that goes on holds what was dropped
                self._serial = None
                raise CannotFollow(f"{self._device} goes back to the model as it was: its version was taken back.")
            self._engine.version(self._model)
        return True

    def _take(self, version: Version, config: SyncConfig) -> bool:
        """Whether this device follows now; not when the version is no longer wanted."""
        began = self._reading.began if self._reading else time.monotonic()
        reason = ""
        for attempt in range(config.max_sync_retries):
            if attempt:
                time.sleep(config.sync_retry_delay)
            if not retry_redis(lambda: self._versions.hear(self._rollout, self._device, version)):
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
        """What was read while the model generated, or read now. A reading that hangs is left alone."""
        reading, self._reading = self._reading, None
        if reading is None or reading.version.serial != version.serial:
            reading = _Reading(self._engine, version)
        return reading.wait(timeout_s)

    def _confirm(self, version: Version, seconds: float) -> bool:
        return retry_redis(lambda: self._versions.confirm(self._rollout, self._device, version, seconds))

    def _fail(self, version: Version, reason: str) -> None:
        retry_redis(lambda: self._versions.fail(self._rollout, self._device, version, reason))


class _Reading:
    """Weights on their way into memory, in a thread of their own."""

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
        except Exception as error:  # noqa: BLE001  # raised again where it is waited for
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
