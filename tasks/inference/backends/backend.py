"""Base of the backends of inference jobs: where rows run, and what determines an answer.

Each backend brings a stage of its own: a device's engine takes rows as it has room, an API is asked for all at once,
and a package's class answers one row at a time.
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
        """Return the one stage of a job that this backend answers."""

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
    """The key where a prompt is all that is asked; `answerer` tells who answers from all others, or is None."""
    if answerer is None:
        return None
    sampling = spec.sampling.model_dump(mode="json")
    if not spec.sampling.temperature:  # nothing is drawn
        sampling = {name: sampling[name] for name in ("temperature", "max_new_tokens", "stop")}
    return {
        "answerer": answerer,
        "messages": messages_of(spec, item),
        "chat": spec.chat,
        "sampling": sampling,
        "logprobs": spec.logprobs,
    }


def whole_spec(spec: InferenceSpec) -> str:
    """The batch key of rows that run by the whole spec."""
    return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
