"""Cache of keys and values for a running batch: a row per answer in progress; rows join and leave independently.

A row's first token is at position 0 of its row, so rows of different length coexist, and a row's attention is computed
over the same positions in every batch. The caches of transformers have a common length for every row.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

#: Lengths are rounded up to a multiple of this. Within a multiple the attention kernel of a CPU sums in the same
#: order, so results are equal bit by bit.
STEP = 16
#: Name under which `grouped_attention` is registered with transformers.
ATTENTION = "assay_grouped"


def round_up(length: int) -> int:
    return -(-length // STEP) * STEP


class KeyValueLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]  # transformers' hook for subclasses has no types
    """Keys and values of a layer; implements transformers' interface."""

    is_sliding = False  # nothing is dropped: the mask applies a sliding window

    def __init__(self, owner: "KeyValueCache") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner = owner

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = key_states.new_zeros(0)  # zeros everywhere: masked values must be finite
        self.values = value_states.new_zeros(0)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        owner = self._owner
        keys, values = self._sized("keys", key_states), self._sized("values", value_states)
        if owner.filling is not None:
            keys[owner.filling, :, : key_states.shape[2]] = key_states
            values[owner.filling, :, : value_states.shape[2]] = value_states
            return key_states, value_states
        count = key_states.shape[0]
        rows, places = owner.row_numbers[:count].to(keys.device), owner.places.to(keys.device)
        keys[rows, :, places] = key_states[:, :, 0]
        values[rows, :, places] = value_states[:, :, 0]
        return keys[:count, :, : owner.window], values[:count, :, : owner.window]

    def _sized(self, name: str, like: Tensor) -> Tensor:
        """Return the stored tensor, resized to the size that the cache has been given."""
        if not self.is_initialized:
            self.lazy_initialization(like, like)
        held: Tensor = getattr(self, name)
        wanted = (self._owner.rows, like.shape[1], self._owner.length, like.shape[3])
        if held.shape != wanted:
            sized = like.new_zeros(wanted)
            if held.numel():
                rows, length = min(wanted[0], held.shape[0]), min(wanted[2], held.shape[2])
                sized[:rows, :, :length] = held[:rows, :, :length]
            setattr(self, name, sized)
            return sized
        return held

    def move(self, source: int, targets: Sequence[int], length: int) -> None:
        if not self.is_initialized:  # no layer has seen a token yet
            return
        for held in (self.keys, self.values):
            assert held is not None
            for target in targets:
                held[target, :, :length] = held[source, :, :length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0  # transformers calls it only while rows are filled from their start

    def get_max_length(self) -> int:
        return -1


class KeyValueCache(Cache):
    """Keys and values of every layer. Before each forward pass, `fill` or `extend` selects its rows."""

    def __init__(self, layers: int) -> None:
        self._slots = [KeyValueLayer(self) for _ in range(layers)]
        super().__init__(layers=list(self._slots))
        self.rows = self.length = self.window = 0
        self.filling: slice | None = None
        self.places = self.row_numbers = torch.zeros(0, dtype=torch.long)

    def resize(self, rows: int, length: int) -> None:
        """Set the number of rows and their length. Layers resize lazily, at their next use, and keep the part that
        fits."""
        self.rows, self.length = rows, length

    def fill(self, first: int, count: int) -> None:
        """Select rows `first` to `first + count` for the next forward pass, which runs prompts from their start."""
        self.filling = slice(first, first + count)

    def extend(self, places: Tensor, newest: int) -> None:
        """Select the first rows for the next forward pass, which adds a token to each, at `places`; `newest`
        is the highest."""
        self.filling = None
        self.places, self.window = places, round_up(newest + 1)
        if len(self.row_numbers) < len(places):
            self.row_numbers = torch.arange(len(places), device=places.device)

    def move(self, source: int, targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of a row to other rows."""
        for layer in self._slots:
            layer.move(source, targets, length)

    def release(self) -> None:
        """Free the memory of every layer."""
        self.rows = self.length = 0
        self.row_numbers = torch.zeros(0, dtype=torch.long)
        for layer in self._slots:
            layer.keys = layer.values = None
            layer.is_initialized = False


def decoding_mask(config: PreTrainedConfig, places: Tensor, window: int) -> Tensor | dict[str, Tensor]:
    """Return the attention mask of a new token per row: the positions of its row up to its own, or a sliding window."""
    distance = places[:, None, None, None] - torch.arange(window, device=places.device)
    full = distance >= 0
    size = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds <= {"full_attention"}:
        return full if not size or kinds else full & (distance < size)
    masks = {"full_attention": full}
    if size:
        masks["sliding_attention"] = full & (distance < size)
    return masks


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers does. Exception: for single tokens, the query heads that share a key head are
    rows of a single product. Otherwise transformers would copy the keys and values for each head at every token."""
    rows, heads, tokens, size = query.shape
    if tokens != 1 or attention_mask is None or others.get("softcap") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    shared = key.shape[1]
    mask = attention_mask.expand(rows, 1, heads // shared, key.shape[2])
    grouped = query.reshape(rows, shared, heads // shared, size)
    found = scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
    return found.reshape(rows, 1, heads, found.shape[-1]), None


def register_attention() -> None:
    """Register `grouped_attention` with transformers. Idempotent."""
    AttentionInterface.register(ATTENTION, grouped_attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
