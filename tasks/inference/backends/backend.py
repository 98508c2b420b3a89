"""What a backend brings: where its rows are run, and what determines an answer. How one runs them is its own affair:
a device's engine takes rows as it has room, an API is asked for all at once, a package's class for one at a time."""

import hashlib
from typing import Any, Protocol

from tasks.inference.model import InferenceItem, InferenceSpec
from tasks.inference.prompts import messages_of
from tasks.jobs.model import Stage


class Backend(Protocol):
    def check(self, spec: InferenceSpec) -> None:
        """Whether this installation has what the spec names. Raises InvalidRequest."""

    def stage(self, spec: InferenceSpec) -> Stage:
        """On which pool rows are run, and how many at a time."""

    def key(self, spec: InferenceSpec, item: InferenceItem) -> dict[str, Any] | None:
        """All that determines the answer; None where that cannot be told. Raises CannotAnswer or InvalidRequest for a
        row that will fail."""

    def batch_key(self, spec: InferenceSpec) -> str:
        """Rows of jobs that agree in this may share a batch."""


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
