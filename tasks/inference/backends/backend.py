"""Interface of a backend of inference jobs: validation, stage and cache keys of rows.

Each backend has a stage of its own: a device's engine takes rows as it has room, an API is called concurrently for the
rows of a chunk, and a package's class answers a single row at a time.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

from tasks.errors import CannotAnswer, InvalidRequest
from tasks.inference.generation import refusal
from tasks.inference.model import InferenceItem, InferenceSpec
from tasks.inference.prompts import messages_of
from tasks.jobs.stage import Key, Stage


class Backend(Protocol):
    def check(self, spec: InferenceSpec) -> None:
        """Raise InvalidRequest if this installation lacks something that the spec names."""

    def stage(self, spec: InferenceSpec) -> Stage[InferenceItem]:
        """Return the only stage of a job with this backend."""

    def batch_key(self, spec: InferenceSpec) -> str:
        """Return a key that is equal for jobs whose rows may share a batch."""


def answerable(item: InferenceItem, key: Callable[[], Key | None]) -> Key | None:
    """Return the key of a row; None for a row that will fail, as failures are not cached."""
    if refusal(item):
        return None
    try:
        return key()
    except (CannotAnswer, InvalidRequest):
        return None


def prompt_key(spec: InferenceSpec, item: InferenceItem, answerer: Any) -> dict[str, Any] | None:
    """Return the cache key of a request that consists of a prompt. `answerer`: unique identification of the model or
    endpoint that answers; without it (None) the row has no key."""
    if answerer is None:
        return None
    sampling = spec.sampling.model_dump(mode="json")
    if not spec.sampling.temperature:  # greedy decoding: random sampling fields have no effect
        sampling = {name: sampling[name] for name in ("temperature", "max_new_tokens", "stop")}
    return {
        "answerer": answerer,
        "messages": messages_of(spec, item),
        "chat": spec.chat,
        "sampling": sampling,
        "logprobs": spec.logprobs,
    }


def whole_spec(spec: InferenceSpec) -> str:
    """Return the batch key of rows that share a batch only if their whole spec is equal."""
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
