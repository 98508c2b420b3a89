"""Client of a rollout: creates, pauses, inspects and ends it."""

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
    """A rollout: the server generates answers to prompts, rewards and queues them while a trainer takes samples.

    `prompts` are dicts with a `prompt` each, the path of a JSONL file, or a generator. docs/rollouts.md lists the other
    options; a trainer's configuration is accepted unchanged. `rollout` gives the id of an existing rollout.
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
            full_spec, key = spec_of(config, **spec), idempotency_key or str(uuid.uuid4())
            with ExitStack() as stack:
                rollout = str(self.client.call(calls.create(full_spec, _lines(prompts, stack), key))["id"])
        self.rollout = rollout

    def queue(self, **options: Any) -> MessageQueueClient:
        """Return a consumer of the rollout's samples."""
        return MessageQueueClient(self.rollout, client=self.client, **options)

    def pause_rollout(self, timeout: float = 300.0) -> bool:
        """Pause generation. Return True once every device has stopped generating, False after `timeout` seconds."""
        return self._pause_or_resume("pause", timeout, lambda state: bool(state["holds"]))

    def resume_rollout(self) -> bool:
        """Resume generation. Return whether the rollout is resumed."""
        return self._pause_or_resume("resume", 0.0, lambda state: not state["paused"])

    def is_rollout_paused(self) -> bool:
        return bool(self.get_statistics()["is_paused"])

    def get_statistics(self) -> dict[str, Any]:
        return self.client.call(calls.statistics(self.rollout))

    def view(self) -> dict[str, Any]:
        """Return the job, the queue and the devices of the rollout."""
        return self.client.call(calls.view(self.rollout))

    def end(self) -> None:
        """End generation permanently. Queued samples can still be taken."""
        self.client.call(calls.end(self.rollout))

    def close(self) -> None:
        if self._owned:
            self.client.close()

    def _pause_or_resume(self, verb: str, timeout: float, is_reached: Any) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            wait_s = max(0.0, min(WAIT_S, deadline - time.monotonic()))
            if is_reached(self.client.call(calls.pause_or_resume(self.rollout, verb, wait_s))):
                return True
            if time.monotonic() >= deadline:
                return False


def _lines(prompts: Items | None, stack: ExitStack) -> upload.Upload | None:
    if prompts is None or isinstance(prompts, upload.Upload):
        return prompts
    if isinstance(prompts, (str, os.PathLike)):
        return upload.of_path(prompts)
    if isinstance(prompts, Sequence):
        return upload.of_sequence(cast("Sequence[upload.Item]", prompts))  # paths are handled above
    return stack.enter_context(upload.spooled(upload.encode(item, at) for at, item in enumerate(prompts)))
