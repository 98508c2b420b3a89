"""Client of the sample queue of a rollout, for a trainer that takes samples or a generator that puts them."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from assay.client import Assay
from assay.rollouts import rollout_calls as calls
from assay.rollouts.batch import metadata_of, samples_of
from assay.rollouts.configuration import spec_of

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("assay")

#: Maximum wait of a single call in seconds; a longer wait is split into several calls.
WAIT_S = 60.0


class MessageQueueClient:
    """Client of a sample queue. `MessageQueueClient(max_staleness=3)` creates a queue without generation; `rollout`
    gives the id of an existing rollout.

    A batch is leased to this client until its next `get_samples`, which acknowledges it. If the process dies before
    that, the batch returns to the queue when its lease of `lease_s` seconds expires, or immediately when a client with
    the same `consumer` name asks for samples. Not thread-safe: each thread that takes samples needs its own client.
    """

    def __init__(
        self,
        rollout: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        max_staleness: int | None = None,
        max_queue_size: int | None = None,
        consumer: str | None = None,
        lease_s: float = 600.0,
        whole_groups: bool = False,
        client: Assay | None = None,
        url: str | None = None,
        token: str | None = None,
    ) -> None:
        self._owned = client is None
        self._client = client or Assay(url, token)
        self.consumer = consumer or f"consumer-{uuid.uuid4().hex[:12]}"
        self._lease_s, self._whole = lease_s, whole_groups
        self._batch = ""
        if rollout is None:
            spec = spec_of(config, max_staleness=max_staleness, max_queue_size=max_queue_size)
            rollout = str(self._client.call(calls.create(spec, None, str(uuid.uuid4())))["id"])
        self.rollout = rollout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Acknowledge the last batch; after an exception, give it back instead."""
        if kind is None:
            self.acknowledge()
        else:
            self.give_back()
        self.close()

    def put_samples(
        self,
        *args: Any,
        epoch: int | None = None,
        sample: Any = None,
        param_version: int | None = None,
        rollout_metadata: Mapping[str, Any] | None = None,
        group_id: str | None = None,
        timeout: float = 0.0,
    ) -> bool:
        """Put a sample, or a list of samples. Return False if the queue has no room for the whole list within `timeout`
        seconds.

        Call it as `put_samples(sample, param_version=1)` or `put_samples(epoch, sample, param_version,
        rollout_metadata)`. Samples with the same `group_id` belong to the same prompt, and stay together for consumers
        that take whole groups.
        """
        given = _named(args, param_version is not None)
        epoch, sample = given.get("epoch", epoch), given.get("sample", sample)
        param_version = given.get("param_version", param_version)
        metadata = given.get("rollout_metadata", rollout_metadata)
        request = {
            "samples": sample if isinstance(sample, list) else [sample],
            "param_version": param_version or 0,
            "epoch": epoch,
            "group_id": group_id,
            "metadata": dict(metadata or {}),
        }
        key, deadline = str(uuid.uuid4()), time.monotonic() + timeout
        while True:
            wait_s = max(0.0, min(WAIT_S, deadline - time.monotonic()))
            if self._client.call(calls.put(self.rollout, request, key, wait_s)):
                return True
            if time.monotonic() >= deadline:
                return False

    def get_samples(
        self,
        min_batch_count: int = 1,
        timeout: float = 0.0,
        current_param_version: int | None = None,
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """Take `min_batch_count` samples, oldest first. Return them with their metadata, or None if the queue does not
        have enough samples within `timeout` seconds.

        Samples that are too stale for `current_param_version` are dropped. The call acknowledges the previous batch.
        """
        query = {"n": str(min_batch_count), "consumer": self.consumer, "lease_s": f"{self._lease_s:g}"}
        if current_param_version is not None:
            query["current_version"] = str(current_param_version)
        if self._whole:
            query["whole"] = "true"
        deadline, dropped = time.monotonic() + timeout, 0
        while True:
            wait_s = max(0.0, min(WAIT_S, deadline - time.monotonic()))
            params = {**query, "acknowledge": self._batch} if self._batch else query
            answer = self._client.call(calls.get(self.rollout, params, wait_s))
            if self._batch and answer["acknowledgement"] == "lapsed":
                log.warning(
                    "The lease of a batch expired before its acknowledgement, so its samples are delivered again: "
                    "increase lease_s."
                )
            self._batch = answer["batch"] or ""
            dropped += answer["dropped"]
            if self._batch:
                return samples_of(answer), metadata_of({**answer, "dropped": dropped})
            if time.monotonic() >= deadline:
                return None

    def acknowledge(self) -> bool:
        """Acknowledge the last batch as used. Return False if its lease had already expired."""
        batch, self._batch = self._batch, ""
        if not batch:
            return True
        return bool(
            self._client.call(calls.finish_batch(self.rollout, batch, "acknowledge"))["acknowledgement"] != "lapsed"
        )

    def give_back(self) -> None:
        """Return the last batch to the queue unused, so that other consumers can take it."""
        batch, self._batch = self._batch, ""
        if batch:
            self._client.call(calls.finish_batch(self.rollout, batch, "give_back"))

    def get_statistics(self) -> dict[str, Any]:
        return self._client.call(calls.statistics(self.rollout))

    def get_queue_size(self) -> int:
        return int(self.get_statistics()["queue_size"])

    def end(self) -> None:
        """End the rollout for every client. Queued samples can still be taken."""
        self._client.call(calls.end(self.rollout))

    def close(self) -> None:
        if self._owned:
            self._client.close()


def _named(args: tuple[Any, ...], has_version: bool) -> dict[str, Any]:
    """Name the positional arguments of `put_samples`: their number selects the short or the long form."""
    if len(args) <= 1:
        names: tuple[str, ...] = ("sample",)
    elif len(args) == 2:
        names = ("epoch", "sample") if has_version else ("sample", "param_version")
    elif len(args) <= 4:
        names = ("epoch", "sample", "param_version", "rollout_metadata")
    else:
        raise TypeError("put_samples takes at most four arguments: epoch, sample, param_version, rollout_metadata")
    return dict(zip(names, args))
