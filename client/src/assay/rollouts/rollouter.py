"""A rollout of the server's: made, held, looked at, ended."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

from assay import upload
from assay.client import Assay
from assay.rollouts import rollout_calls as calls
from assay.rollouts.configuration import spec_of
from assay.rollouts.message_queue import WAIT_S, MessageQueueClient

if TYPE_CHECKING:
    from assay.upload import Items


class FullyAsyncRollouter:
    """Prompts are generated, rewarded and queued by the server while a trainer takes samples.

    `prompts`: dicts with a `prompt` each, the path of a JSONL file, or a generator. What else may be asked for is in
    docs/rollouts.md; a trainer's configuration is taken as it is. `rollout` names one that was made before.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        prompts: Items | None = None,
        *,
        rollout: str | None = None,
        client: Assay | None = None,
        url: str | None = None,
        token: str | None = None,
        idempotency_key: str | None = None,
        **spec: Any,
    ) -> None:
        self._owned = client is None
        self.client = client or Assay(url, token)
        if rollout is None:
            asked, key = spec_of(config, **spec), idempotency_key or str(uuid.uuid4())
            with ExitStack() as stack:
                rollout = str(self.client.call(calls.create(asked, _lines(prompts, stack), key))["id"])
        self.rollout = rollout

    def queue(self, **options: Any) -> MessageQueueClient:
        """A consumer of its samples."""
        return MessageQueueClient(self.rollout, client=self.client, **options)

    def pause_rollout(self, timeout: float = 300.0) -> bool:
        """Generate no more; True once nothing is generated any more, False when that takes longer."""
        return self._hold("pause", timeout, lambda told: bool(told["holds"]))

    def resume_rollout(self) -> bool:
        """Generate again."""
        return self._hold("resume", 0.0, lambda told: not told["paused"])

    def is_rollout_paused(self) -> bool:
        return bool(self.get_statistics()["is_paused"])

    def get_statistics(self) -> dict[str, Any]:
        return self.client.call(calls.statistics(self.rollout))

    def view(self) -> dict[str, Any]:
        """Its job, its queue, its devices."""
        return self.client.call(calls.look(self.rollout))

    def end(self) -> None:
        """Generate no more, for good. Samples that wait can still be had."""
        self.client.call(calls.end(self.rollout))

    def close(self) -> None:
        if self._owned:
            self.client.close()

    def _hold(self, verb: str, timeout: float, is_enough: Any) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            wait_s = max(0.0, min(WAIT_S, deadline - time.monotonic()))
            if is_enough(self.client.call(calls.hold(self.rollout, verb, wait_s))):
                return True
            if time.monotonic() >= deadline:
                return False


def _lines(prompts: Items | None, stack: ExitStack) -> upload.Upload | None:
    if prompts is None or isinstance(prompts, upload.Upload):
        return prompts
    if isinstance(prompts, (str, os.PathLike)):
        return upload.of_path(prompts)
    if isinstance(prompts, Sequence):
        return upload.of_sequence(cast("Sequence[upload.Item]", prompts))  # a path was seen above
    return stack.enter_context(upload.spooled(upload.encode(item, at) for at, item in enumerate(prompts)))
