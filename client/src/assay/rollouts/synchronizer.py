"""New weights for the devices of a rollout."""

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

#: The path of a safetensors file, the URL of one or of a folder of them that the server may read, or the bytes of one.
Weights = Union[str, "os.PathLike[str]", bytes]


class ParameterSynchronizer:
    """`weights` says where the trainer's weights are: a file that it writes before each sync, or a function that gives
    them. How often and how long devices try is the rollout's configuration (`max_sync_retries`, `sync_timeout`,
    `sync_retry_delay`)."""

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
        """What the server said last: `version`, `state`, `reason`, `sync_s`, `devices`."""

    @property
    def current_version(self) -> int:
        """What devices are to hold."""
        return int(self._told(calls.versions(self.rollout))["version"])

    def sync_weights(self, version: int | None = None, weights: Weights | None = None, timeout: float = 600.0) -> bool:
        """Bring these weights to the devices as this version, by default the next one. True once the devices have them;
        False when none could take them, and the version before is in force again, or when it takes longer."""
        given = weights if weights is not None else self._weights() if callable(self._weights) else self._weights
        if given is None:
            raise ValueError("There are no weights: give `weights` here, or to ParameterSynchronizer.")
        number = self.current_version + 1 if version is None else version
        deadline = time.monotonic() + timeout
        told = self._announce(number, given, min(WAIT_S, timeout))
        while told["state"] == "syncing" and time.monotonic() < deadline:
            time.sleep(0.02)
            told = self._told(calls.versions(self.rollout))
        return bool(told["state"] == "synced" and told["version"] == number)

    def _announce(self, number: int, weights: Weights, wait_s: float) -> dict[str, Any]:
        if isinstance(weights, str) and "://" in weights:
            return self._told(calls.announce(self.rollout, number, weights, "", wait_s))
        if isinstance(weights, bytes):
            body, digest = upload.of_bytes(weights, calls.WEIGHTS), hashlib.sha256(weights)
        else:
            body = upload.of_path(weights)
            body = upload.Upload({**body.headers, "Content-Type": calls.WEIGHTS}, body.open)
            digest = hashlib.sha256()
            for block in body.open():
                digest.update(block)
        return self._told(calls.send_weights(self.rollout, number, body, digest.hexdigest(), wait_s))

    def _told(self, call: Call[dict[str, Any]]) -> dict[str, Any]:
        self.status = self._client.call(call)
        return self.status

    def close(self) -> None:
        if self._owned:
            self._client.close()
