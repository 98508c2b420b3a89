"""LRU cache of the models on the device: evicts the least recently used models when memory is short."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tasks.errors import ModelTooLarge
from tasks.inference.engine import ModelRef
from workers.engines.loading import load
from workers.engines.memory import GB, free_bytes, free_device_memory, weights_bytes
from workers.engines.model import Model, Role
from workers.engines.model_files import ModelFinder
from workers.engines.precision import choose_dtype
from workers.engines.running_batch import RunningBatch

log = logging.getLogger(__name__)

#: Memory that loading needs beyond the weights, as a share of them, and memory for a first small batch.
EXTRA_SHARE, EXTRA_BYTES = 0.1, 100_000_000


@dataclass(frozen=True, slots=True)
class ModelInventory:
    """The models of a device as its worker reports them: loaded models, the model being loaded, and their versions."""

    loaded: tuple[str, ...] = ()
    loading: str = ""
    weights: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class CachedModel:
    model: Model
    files: str
    """Version of the files that the model was loaded from. A weight update changes only `model.version`."""
    batch: RunningBatch | None = None

    @property
    def bytes(self) -> int:
        return self.model.bytes + (self.batch.cache_bytes if self.batch else 0)


class ModelCache:
    def __init__(
        self,
        sources: ModelFinder,
        device: torch.device,
        memory_bytes: int | None = None,
        announce: Callable[[ModelInventory], None] | None = None,
    ) -> None:
        """`memory_bytes`: maximum memory of the models together. Free device memory is a limit in any case."""
        self._sources = sources
        self._device = device
        self._memory_bytes = memory_bytes
        self._announce = announce or (lambda _: None)
        self._held: OrderedDict[tuple[ModelRef, Role], CachedModel] = OrderedDict()

    @property
    def inventory(self) -> ModelInventory:
        return self._holdings()

    def get(self, ref: ModelRef, role: Role) -> CachedModel:
        """Return the model; load it if it is missing or its files have changed. Raises ModelUnusable or
        HubUnavailable."""
        key = (ref, role)
        if key in self._held and self._sources.has_changed(ref, self._held[key].files):
            log.info("the files of %s have changed since it was loaded: loading it again", ref)
            del self._held[key]
            free_device_memory()
        if key not in self._held:
            model = self._load(ref, role)
            self._held[key] = CachedModel(model, model.version)
            self._announce(self.inventory)
        self._held.move_to_end(key)
        return self._held[key]

    def announce_update(self) -> None:
        """Announce the models again after a weight update."""
        self._announce(self.inventory)

    @property
    def copies(self) -> list[str]:
        """Ids of the rollouts that own a copy of a model; see `ModelRef.copy`."""
        return sorted({ref.copy for ref, _ in self._held if ref.copy})

    def drop_copy(self, copy: str) -> None:
        for ref, role in [key for key in self._held if key[0].copy == copy]:
            self.drop(ref, role)

    def drop(self, ref: ModelRef, role: Role) -> None:
        if self._held.pop((ref, role), None):
            free_device_memory()
            self._announce(self.inventory)

    def _load(self, ref: ModelRef, role: Role) -> Model:
        started = time.monotonic()
        dtype = choose_dtype(ref.dtype, self._device)
        self._announce(self._holdings(loading=str(ref)))
        try:
            source = self._sources.find(ref)
            needed = int(weights_bytes(source.folder, source.gguf, dtype) * (1 + EXTRA_SHARE)) + EXTRA_BYTES
            self._make_room(ref, needed)
            model = load(ref, role, source, dtype, self._device, needed)
        except BaseException:
            self._announce(self.inventory)
            raise
        log.info("loaded %s as %s (%.2f GB) in %.1f s", ref, dtype, model.bytes / GB, time.monotonic() - started)
        return model

    def _make_room(self, ref: ModelRef, needed: int) -> None:
        while needed > (room := self._room()):
            if not self._held:
                raise ModelTooLarge(
                    f"out of memory: {ref} needs about {needed / GB:.1f} GB, and {room / GB:.1f} GB are free"
                )
            (oldest, _), resident = self._held.popitem(last=False)
            log.info("evicted %s to free %.2f GB", oldest, resident.bytes / GB)
            del resident
            free_device_memory()

    def _room(self) -> int:
        free = free_bytes(self._device)
        if self._memory_bytes is None:
            return free
        return min(free, self._memory_bytes - sum(each.bytes for each in self._held.values()))

    def _holdings(self, loading: str = "") -> ModelInventory:
        # The role `generate` comes last and so decides the version: weight updates change no other role of a model.
        held = sorted(self._held.items(), key=lambda item: item[0][1] == "generate")
        weights = {str(ref): resident.model.version for (ref, _), resident in held}
        return ModelInventory(tuple(dict.fromkeys(str(ref) for ref, _ in self._held)), loading, weights)
