"""Sends new weights to the devices of a rollout."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import Any, Union

from assay import upload
from assay.calls import Call
from assay.client import Assay
from assay.rollouts import rollout_calls as calls
from assay.rollouts.message_queue import WAIT_S
from assay.rollouts.rollouter import FullyAsyncRollouter

#: Path or bytes of a safetensors file, or the URL of a file or of a folder of files that the server can read.
Weights = Union[str, "os.PathLike[str]", bytes]


class ParameterSynchronizer:
    """Synchronizes the weights of a trainer to the devices of a rollout. `weights` is a file that the trainer writes
    before each synchronization, or a function that returns the weights. The rollout's configuration sets the number and
    duration of the devices' attempts (`max_sync_retries`, `sync_timeout`, `sync_retry_delay`)."""

    def __init__(
        self,
        rollout: FullyAsyncRollouter | str,
        weights: Weights | Callable[[], Weights] | None = None,
        *,
        client: Assay | None = None,
        url: str | None = None,
        token: str | None = None,
    ) -> None:
        shared = rollout.client if isinstance(rollout, FullyAsyncRollouter) else client
        self._owned = shared is None
        self._client = shared or Assay(url, token)
        self.rollout = rollout.rollout if isinstance(rollout, FullyAsyncRollouter) else rollout
        self._weights = weights
        self.status: dict[str, Any] = {}
        """The server's last response: `version`, `state`, `reason`, `sync_s`, `devices`."""

    @property
    def current_version(self) -> int:
        """Version of the weights that the devices should have."""
        return int(self._call(calls.versions(self.rollout))["version"])

    def sync_weights(self, version: int | None = None, weights: Weights | None = None, timeout: float = 600.0) -> bool:
        """Send weights to the devices under a version, by default the next version.

        Return True once the devices have the weights. Return False if no device could load them, in which case the
        previous version is restored, or if it takes longer than `timeout` seconds.
        """
        given = weights if weights is not None else self._weights() if callable(self._weights) else self._weights
        if given is None:
            raise ValueError("The weights are missing: give `weights` here, or to ParameterSynchronizer.")
        number = self.current_version + 1 if version is None else version
        deadline = time.monotonic() + timeout
        status = self._announce(number, given, min(WAIT_S, timeout))
        while status["state"] == "syncing" and time.monotonic() < deadline:
            time.sleep(0.02)
            status = self._call(calls.versions(self.rollout))
        return bool(status["state"] == "synced" and status["version"] == number)

    def _announce(self, number: int, weights: Weights, wait_s: float) -> dict[str, Any]:
        if isinstance(weights, str) and "://" in weights:
            return self._call(calls.announce(self.rollout, number, weights, "", wait_s))
        if isinstance(weights, bytes):
            body, digest = upload.of_bytes(weights, calls.WEIGHTS), hashlib.sha256(weights)
        else:
            body = upload.of_path(weights)
            body = upload.Upload({**body.headers, "Content-Type": calls.WEIGHTS}, body.open)
            digest = hashlib.sha256()
            for block in body.open():
                digest.update(block)
        return self._call(calls.send_weights(self.rollout, number, body, digest.hexdigest(), wait_s))

    def _call(self, call: Call[dict[str, Any]]) -> dict[str, Any]:
        self.status = self._client.call(call)
        return self.status

    def close(self) -> None:
        if self._owned:
            self._client.close()
