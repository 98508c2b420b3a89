"""The sample queue of a rollout, as a trainer or a generator of its own uses it."""

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

#: Seconds that one call asks the server to wait; longer waits are several calls.
WAIT_S = 60.0


class MessageQueueClient:
    """`MessageQueueClient(max_staleness=3)` makes a queue alone; `rollout` names one that is there.

    A batch belongs to this client until its next `get_samples`, which acknowledges it. Should the process die first,
    the batch goes back to the queue after `lease_s`, or at once when a client of the same `consumer` name asks. Threads
    that take samples need a client each.
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
        self._held = ""
        if rollout is None:
            spec = spec_of(config, max_staleness=max_staleness, max_queue_size=max_queue_size)
            rollout = str(self._client.call(calls.create(spec, None, str(uuid.uuid4())))["id"])
        self.rollout = rollout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What was taken last has been used, unless something was raised."""
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
        """Put one sample, or a list of them. False when there is no room for all of them within `timeout` seconds.

        `put_samples(sample, param_version=1)`, or `put_samples(epoch, sample, param_version, rollout_metadata)`. With a
        `group_id` the samples are of one prompt, and stay together for who asks for whole groups.
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
        """So many samples, oldest first, and what is known of them; None when there are not enough within `timeout`
        seconds. Those too stale for this version are dropped. The batch before counts as used from now on."""
        query = {"n": str(min_batch_count), "consumer": self.consumer, "lease_s": f"{self._lease_s:g}"}
        if current_param_version is not None:
            query["current_version"] = str(current_param_version)
        if self._whole:
            query["whole"] = "true"
        deadline, dropped = time.monotonic() + timeout, 0
        while True:
            wait_s = max(0.0, min(WAIT_S, deadline - time.monotonic()))
            asked = {**query, "acknowledge": self._held} if self._held else query
            answer = self._client.call(calls.get(self.rollout, asked, wait_s))
            if self._held and answer["acknowledgement"] == "lapsed":
                log.warning("The lease of a batch was over before it was acknowledged: its samples come again.")
            self._held = answer["batch"] or ""
            dropped += answer["dropped"]
            if self._held:
                return samples_of(answer), metadata_of({**answer, "dropped": dropped})
            if time.monotonic() >= deadline:
                return None

    def acknowledge(self) -> bool:
        """The batch taken last was used. False when its lease was over before."""
        batch, self._held = self._held, ""
        if not batch:
            return True
        return bool(self._client.call(calls.settle(self.rollout, batch, "acknowledge"))["acknowledgement"] != "lapsed")

    def give_back(self) -> None:
        """The batch taken last was not used: others may have it."""
        batch, self._held = self._held, ""
        if batch:
            self._client.call(calls.settle(self.rollout, batch, "give_back"))

    def get_statistics(self) -> dict[str, Any]:
        return self._client.call(calls.statistics(self.rollout))

    def get_queue_size(self) -> int:
        return int(self.get_statistics()["queue_size"])

    def end(self) -> None:
        """End the rollout, for everybody. Samples that wait can still be had."""
        self._client.call(calls.end(self.rollout))

    def close(self) -> None:
        if self._owned:
            self._client.close()


def _named(args: tuple[Any, ...], has_version: bool) -> dict[str, Any]:
    """Positional arguments by name: short or long, as their number tells."""
    if len(args) <= 1:
        names: tuple[str, ...] = ("sample",)
    elif len(args) == 2:
        names = ("epoch", "sample") if has_version else ("sample", "param_version")
    elif len(args) <= 4:
        names = ("epoch", "sample", "param_version", "rollout_metadata")
    else:
        raise TypeError("put_samples takes epoch, sample, param_version, rollout_metadata")
    return dict(zip(names, args))
