"""Job kind `inference`: one stage, on devices, on API workers, or where a backend of an installed package says."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tasks.apis.call import Ask
from tasks.errors import CannotAnswer, InvalidRequest
from tasks.inference.backends.backend import Backend
from tasks.inference.backends.by_api import ByApi, profile_of
from tasks.inference.backends.installed import Installed
from tasks.inference.backends.on_devices import OnDevices
from tasks.inference.duplicates import settled
from tasks.inference.generation import refusal
from tasks.inference.model import DEVICE_BACKENDS, InferenceItem, InferenceSpec
from tasks.inference.models import Models
from tasks.inference.prompts import check_template
from tasks.jobs.kinds import Context, Feed, Work
from tasks.jobs.model import STOPPED, Result, Stage
from tasks.judging.key import Resolve


class Inference:
    name = "inference"
    spec_model = InferenceSpec
    item_model = InferenceItem

    def __init__(self, models: Models, resolve: Resolve) -> None:
        self._on_devices = OnDevices(models)
        self._by_api = ByApi(resolve)
        self._installed = Installed()

    def check(self, spec: InferenceSpec) -> None:
        check_template(spec)
        self._backend(spec).check(spec)

    def choose(self, spec: InferenceSpec, items: Iterator[dict[str, Any]], slots: int) -> Iterator[dict[str, Any]]:
        """The first rows, as many as the job may have; those that ask alike by their `dedup_key` made alike."""
        limits = [spec.limit, spec.max_samples_per_worker and spec.max_samples_per_worker * max(1, slots)]
        most = min((limit for limit in limits if limit), default=None)
        return settled(islice(items, most))

    def stages(self, spec: InferenceSpec) -> Sequence[Stage]:
        return [self._backend(spec).stage(spec)]

    def key(self, spec: InferenceSpec, stage: str, item: InferenceItem) -> dict[str, Any] | None:  # noqa: ARG002  # one stage
        if refusal(item):
            return None
        try:
            return self._backend(spec).key(spec, item)
        except (CannotAnswer, InvalidRequest):  # it will fail, and failures are not stored
            return None

    def stored_key(self, spec: InferenceSpec, stage: str, item: InferenceItem, result: Result) -> dict[str, Any] | None:  # noqa: ARG002  # one stage
        return self._by_api.stored_key(spec, item, result)

    def labels(self, spec: InferenceSpec) -> Mapping[str, str]:
        return {"model": spec.model, "profile": profile_of(spec) if spec.asks_an_api else ""}

    def batch_key(self, spec: InferenceSpec) -> str:
        return self._backend(spec).batch_key(spec)

    def advance(self, spec: InferenceSpec, stage: str, work: Work[InferenceItem], result: Result) -> Result:  # noqa: ARG002  # one stage
        return result

    def stream(self, context: Context, feed: Feed[InferenceItem]) -> None:
        self._on_devices.stream(context, feed)

    async def run_one(self, ask: Ask, spec: InferenceSpec, work: Work[InferenceItem]) -> Result:
        return await self._by_api.run_one(ask, spec, work.item)

    def run(self, context: Context, spec: InferenceSpec, batch: Sequence[Work[InferenceItem]]) -> Sequence[Result]:
        items = [work.item for work in batch]
        if spec.task == "embed":
            return self._on_devices.embed(context.engine(), spec, items)
        return [STOPPED if context.is_cancelled() else self._installed.run(spec, item) for item in items]

    def _backend(self, spec: InferenceSpec) -> Backend:
        if spec.backend in DEVICE_BACKENDS:
            return self._on_devices
        return self._by_api if spec.asks_an_api else self._installed
