"""The models that stay on the device: least recently used ones make room when memory is short."""

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
from workers.engines.precision import choose_dtype
from workers.engines.running_batch import RunningBatch
from workers.engines.sources import Sources

log = logging.getLogger(__name__)

#: What loading takes beside the weights, as a share of them, and what a first small batch takes.
EXTRA_SHARE, EXTRA_BYTES = 0.1, 100_000_000


@dataclass(frozen=True, slots=True)
class Holdings:
    """What others are told: the models that are here, the one that is being loaded, and which weights they have."""

    loaded: tuple[str, ...] = ()
    loading: str = ""
    weights: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Resident:
    model: Model
    files: str
    """The version of the files it was loaded from; a swap changes the model's own."""
    batch: RunningBatch | None = None

    @property
    def bytes(self) -> int:
        return self.model.bytes + (self.batch.cache_bytes if self.batch else 0)


class Residents:
    def __init__(
        self,
        sources: Sources,
        device: torch.device,
        memory_bytes: int | None = None,
        announce: Callable[[Holdings], None] | None = None,
    ) -> None:
        """`memory_bytes`: what all models together may take; what is free on the device bounds them in any case."""
        self._sources = sources
        self._device = device
        self._memory_bytes = memory_bytes
        self._announce = announce or (lambda _: None)
        self._held: OrderedDict[tuple[ModelRef, Role], Resident] = OrderedDict()

    @property
    def holdings(self) -> Holdings:
        return self._holdings()

    def get(self, ref: ModelRef, role: Role) -> Resident:
        """The model, loaded if it is not here, or has other files by now. Raises ModelUnusable or HubUnavailable."""
        key = (ref, role)
        if key in self._held and self._sources.has_changed(ref, self._held[key].files):
            log.info("%s has other files than those that were loaded: loaded anew", ref)
            del self._held[key]
            free_device_memory()
        if key not in self._held:
            model = self._load(ref, role)
            self._held[key] = Resident(model, model.version)
            self._announce(self.holdings)
        self._held.move_to_end(key)
        return self._held[key]

    def tell(self) -> None:
        """A model that is here has other weights now."""
        self._announce(self.holdings)

    @property
    def copies(self) -> list[str]:
        """Those that somebody has for themselves: see `ModelRef.copy`."""
        return sorted({ref.copy for ref, _ in self._held if ref.copy})

    def drop_copy(self, copy: str) -> None:
        for ref, role in [key for key in self._held if key[0].copy == copy]:
            self.drop(ref, role)

    def drop(self, ref: ModelRef, role: Role) -> None:
        if self._held.pop((ref, role), None):
            free_device_memory()
            self._announce(self.holdings)

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
            self._announce(self.holdings)
            raise
        log.info("loaded %s as %s (%.2f GB) in %.1f s", ref, dtype, model.bytes / GB, time.monotonic() - started)
        return model

    def _make_room(self, ref: ModelRef, needed: int) -> None:
        while needed > (room := self._room()):
            if not self._held:
                raise ModelTooLarge(
                    f"out of memory: {ref} needs about {needed / GB:.1f} GB, and there are {room / GB:.1f} GB"
                )
            (oldest, _), resident = self._held.popitem(last=False)
            log.info("%s makes room (%.2f GB)", oldest, resident.bytes / GB)
            del resident
            free_device_memory()

    def _room(self) -> int:
        free = free_bytes(self._device)
        if self._memory_bytes is None:
            return free
        return min(free, self._memory_bytes - sum(each.bytes for each in self._held.values()))

    def _holdings(self, loading: str = "") -> Holdings:
        # What generates is named last: of the roles of a model only that one's weights are ever swapped.
        held = sorted(self._held.items(), key=lambda item: item[0][1] == "generate")
        weights = {str(ref): resident.model.version for (ref, _), resident in held}
        return Holdings(tuple(dict.fromkeys(str(ref) for ref, _ in self._held)), loading, weights)
