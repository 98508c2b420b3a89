"""Matrix products on a CPU by oneDNN instead of MKL, which torch prefers for float32.

Measured on an AMD CPU with AVX-512, one thread, layers of SmolLM2, 32 rows and more: 200 to 240 GFLOP/s, MKL 105 to
115. Both compute in float32, so results differ only by the order of addition, and oneDNN's are just as independent of
the batch. It is used wherever torch includes it, even where it is not faster, because the results of two workers must
not differ in their last bits.

oneDNN reorders weights into a layout of its own before it multiplies. Packed weights are kept in that layout: all
products of SmolLM2 then take 20 ms instead of 35 with 4 rows, 78 instead of 93 with 64, and with two or more rows they
are equal bit by bit.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

#: Number of rows for which oneDNN chooses the layout. It works for any number; for a single row oneDNN would choose a
#: different layout.
PACKED_FOR = 64


class OneDnnLinear(nn.Linear):
    packed: Tensor | None = None
    """Weights in oneDNN's layout. The parameter then has their shape, but no values."""

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The values in the plain layout, for the few models whose code reads this attribute."""
        found = self._parameters["weight"] if self.packed is None else self.packed.to_dense()
        assert found is not None
        return found

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Put the values, not the placeholder, into a saved state."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight if keep_vars else self.weight.detach()

    def forward(self, input: Tensor) -> Tensor:
        weight = self._parameters["weight"] if self.packed is None else self.packed
        found: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, self.bias, "none", [], "")
        return found


def use_onednn(network: nn.Module) -> None:
    """Multiply with oneDNN in every plain linear layer, if torch includes oneDNN."""
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        for layer in network.modules():
            if type(layer) is nn.Linear:
                layer.__class__ = OneDnnLinear


def pack(network: nn.Module) -> None:
    """Store each layer's weights in oneDNN's layout, except weights that another layer shares."""
    users = Counter(id(each) for layer in network.modules() for each in layer.parameters(recurse=False))
    for layer, weight in _onednn_layers(network):
        if users[id(weight)] == 1:
            values = weight.data
            weight.data = values.new_full((1,), torch.nan).expand(values.shape)
            layer.packed = torch.ops.mkldnn._reorder_linear_weight(values.contiguous(), PACKED_FOR)


def unpack(network: nn.Module) -> None:
    """Restore the plain layout before a weight update. Every allocation, which may fail, precedes the first change."""
    dense = [
        (layer, weight, layer.packed.to_dense())
        for layer, weight in _onednn_layers(network)
        if layer.packed is not None
    ]
    for layer, weight, values in dense:
        weight.data, layer.packed = values, None


def plain_tensors(network: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers that are not packed."""
    packed = {id(weight) for layer, weight in _onednn_layers(network) if layer.packed is not None}
    yield from (each for each in (*network.parameters(), *network.buffers()) if id(each) not in packed)


def _onednn_layers(network: nn.Module) -> Iterator[tuple[OneDnnLinear, nn.Parameter]]:
    for layer in network.modules():
        if isinstance(layer, OneDnnLinear):
            weight = layer._parameters["weight"]
            assert weight is not None
            yield layer, weight
