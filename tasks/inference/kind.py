"""Job kind `inference`: a single stage, on devices, on API workers, or on the pool of a package's backend."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Self

from tasks.inference.backends.backend import Backend
from tasks.inference.backends.by_api import ByApi, profile_of
from tasks.inference.backends.installed import Installed
from tasks.inference.backends.on_devices import OnDevices
from tasks.inference.duplicates import settled
from tasks.inference.model import DEVICE_BACKENDS, InferenceItem, InferenceSpec
from tasks.inference.models import Models
from tasks.inference.prompts import check_template
from tasks.jobs.kind import Installation, ItemSelector, Kind
from tasks.jobs.stage import Stage
from tasks.judging.key import Resolve, resolver


def installed_models(installation: Installation) -> Models:
    settings = installation.settings
    return Models(settings.models_dir, settings.model_paths)


class Inference(Kind[InferenceSpec, InferenceItem]):
    name = "inference"
    spec_model = InferenceSpec
    item_model = InferenceItem

    def __init__(self, models: Models, resolve: Resolve) -> None:
        self._on_devices = OnDevices(models)
        self._by_api = ByApi(resolve)
        self._installed = Installed()

    @classmethod
    def create(cls, installation: Installation) -> Self:
        return cls(installation.shared(installed_models), resolver(installation.profiles))

    def check(self, spec: InferenceSpec) -> None:
        check_template(spec)
        self._backend(spec).check(spec)

    def item_selector(self, spec: InferenceSpec, count_device_slots: Callable[[], int]) -> ItemSelector:
        """Select the first rows, up to the job's limits. Rows with equal `dedup_key` get the first row's question."""
        limits = [spec.limit]
        if spec.max_samples_per_worker:
            limits.append(spec.max_samples_per_worker * max(1, count_device_slots()))
        most = min((limit for limit in limits if limit), default=None)
        return lambda items: settled(islice(items, most))

    def stages(self, spec: InferenceSpec) -> Sequence[Stage[InferenceItem]]:
        return [self._backend(spec).stage(spec)]

    def labels(self, spec: InferenceSpec) -> Mapping[str, str]:
        return {"model": spec.model, "profile": profile_of(spec) if spec.asks_an_api else ""}

    def batch_key(self, spec: InferenceSpec) -> str:
        return self._backend(spec).batch_key(spec)

    def _backend(self, spec: InferenceSpec) -> Backend:
        if spec.backend in DEVICE_BACKENDS:
            return self._on_devices
        return self._by_api if spec.asks_an_api else self._installed
