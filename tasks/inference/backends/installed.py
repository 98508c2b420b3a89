"""Backends of installed packages: an entry point of the group `assay.backends` names a class with this interface.

    class Parrot:
        def generate_answer(self, query: str, context: str, retrieval_method: str) -> str:
            return query

A process creates a single instance, on first use, and calls it for a single row at a time, on the queue of its `pool`
(default: `device`). If the class has a `version`, equal rows are computed once and cached until the version changes; a
class without a version may answer differently each time, and is called each time.
"""

import time
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Literal, Protocol, cast

from tasks.errors import InvalidRequest
from tasks.inference.backends.backend import answerable, whole_spec
from tasks.inference.generation import answered, refusal
from tasks.inference.model import API_BACKENDS, DEVICE_BACKENDS, InferenceItem, InferenceSpec
from tasks.jobs.model import STOPPED, ItemError, Result, StageLimits
from tasks.jobs.stage import BatchStage, Context, Key, Stage, Work

GROUP = "assay.backends"
#: Initial estimate of the seconds that a row takes.
COST_S = 0.5


class Answering(Protocol):
    def generate_answer(self, query: str, context: str, retrieval_method: str) -> str: ...


class Installed:
    def check(self, spec: InferenceSpec) -> None:
        _pool_of(spec.backend)

    def stage(self, spec: InferenceSpec) -> Stage[InferenceItem]:
        return InstalledStage(spec)

    def batch_key(self, spec: InferenceSpec) -> str:
        return whole_spec(spec)


class InstalledStage(BatchStage[InferenceItem]):
    """Answers rows, a single row at a time, by a class of an installed package."""

    def __init__(self, spec: InferenceSpec) -> None:
        limits = StageLimits(batch_items=1, cost_s=COST_S, timeout_s=spec.timeout_s)
        super().__init__("generate", _pool_of(spec.backend), limits)
        self._spec = spec

    def key(self, work: Work[InferenceItem]) -> Key | None:
        return answerable(work.item, lambda: self._key(work.item))

    def _key(self, item: InferenceItem) -> Key | None:
        version = getattr(class_of(self._spec.backend), "version", None)
        if version is None:
            return None
        return {"answerer": [self._spec.backend, str(version)], "asked": _arguments(item)}

    def run(self, context: Context, batch: Sequence[Work[InferenceItem]]) -> Sequence[Result]:
        return [STOPPED if context.is_cancelled() else self._answer(work.item) for work in batch]

    def _answer(self, item: InferenceItem) -> Result:
        if refused := refusal(item):
            return refused
        began = time.monotonic()
        backend = instance(self._spec.backend)
        try:
            text = backend.generate_answer(*_arguments(item))
        except Exception as error:  # noqa: BLE001  # an error of a package's code fails only this row
            failure = ItemError("backend_failed", f"{type(error).__name__}: {error}"[:1000])
            return Result(error=failure, value={"exception_type": type(error).__name__})
        return answered(
            {
                "answers": [str(text)],
                "finish": ["stop"],
                "tokens": {"prompt": 0, "completion": 0},  # the interface reports no tokens
                "inference_time": round(time.monotonic() - began, 4),
                "model": self._spec.model,
                "version": str(getattr(backend, "version", "")),
            }
        )


@lru_cache(maxsize=32)
def instance(name: str) -> Answering:
    """Return this process's instance of a backend's class, creating it on first use."""
    return class_of(name)()


@lru_cache(maxsize=32)
def class_of(name: str) -> type[Answering]:
    """Load the class of a backend. Raises InvalidRequest for a backend that is not installed."""
    for each in entry_points(group=GROUP, name=name):
        return cast(type[Answering], each.load())
    known = ", ".join((*DEVICE_BACKENDS, *API_BACKENDS, *sorted(each.name for each in entry_points(group=GROUP))))
    raise InvalidRequest(f"spec.backend: unknown backend {name!r}: use {known}", field="spec.backend")


def _pool_of(name: str) -> Literal["device", "api", "cpu"]:
    pool = getattr(class_of(name), "pool", "device")
    if pool not in ("device", "api", "cpu"):
        raise InvalidRequest(
            f"spec.backend: {name} has the unknown pool {pool!r}: its class must set device, api or cpu",
            field="spec.backend",
        )
    return cast(Literal["device", "api", "cpu"], pool)


def _arguments(item: InferenceItem) -> tuple[str, str, str]:
    row = item.model_dump(mode="json") | (item.answered_as or {})
    return row["query"] or "", row["context"] or "", row["retrieval_method"] or ""
