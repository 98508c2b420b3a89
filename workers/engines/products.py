"""Matrix products on a CPU by oneDNN instead of MKL, which torch prefers for float32.

Measured on an AMD CPU with AVX-512, one thread, layers of SmolLM2, from 32 rows on: 200 to 240 GFLOP/s, not 105 to 115.
The same float32, so the same numbers but for the order of addition, and no less independent of the batch. It is used
wherever torch has it, and not just where it is faster, because workers must not differ in their last bits.

oneDNN brings weights into a form of its own before it multiplies. Weights that stay are packed, that is held in that
form: all products of SmolLM2 then take 20 ms instead of 35 with 4 rows, 78 instead of 93 with 64, and from two rows on
they are the same bit by bit.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

#: Rows that the form is chosen for. It serves any number; for a single row oneDNN would choose another.
PACKED_FOR = 64


class Product(nn.Linear):
    packed: Tensor | None = None
    """The weights in oneDNN's form. The parameter then has their shape and no values."""

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """For the few models whose code reads it: the values, whichever form they are in."""
        found = self._parameters["weight"] if self.packed is None else self.packed.to_dense()
        assert found is not None
        return found

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """For those who write it to a file."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight if keep_vars else self.weight.detach()

    def forward(self, input: Tensor) -> Tensor:
        weight = self._parameters["weight"] if self.packed is None else self.packed
        found: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, self.bias, "none", [], "")
        return found


def use_onednn(network: nn.Module) -> None:
    """For the plain linear layers."""
    if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        for layer in network.modules():
            if type(layer) is nn.Linear:
                layer.__class__ = Product


def pack(network: nn.Module) -> None:
    """Weights that another layer uses too stay as they are."""
    users = Counter(id(each) for layer in network.modules() for each in layer.parameters(recurse=False))
    for layer, weight in _products(network):
        if users[id(weight)] == 1:
            values = weight.data
            weight.data = values.new_full((1,), torch.nan).expand(values.shape)
            layer.packed = torch.ops.mkldnn._reorder_linear_weight(values.contiguous(), PACKED_FOR)


def unpack(network: nn.Module) -> None:
    """Before weights are changed. What may fail is done before anything is."""
    dense = [
        (layer, weight, layer.packed.to_dense()) for layer, weight in _products(network) if layer.packed is not None
    ]
    for layer, weight, values in dense:
        weight.data, layer.packed = values, None


def plain_tensors(network: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers that are held as they are."""
    packed = {id(weight) for layer, weight in _products(network) if layer.packed is not None}
    yield from (each for each in (*network.parameters(), *network.buffers()) if id(each) not in packed)


def _products(network: nn.Module) -> Iterator[tuple[Product, nn.Parameter]]:
    for layer in network.modules():
        if isinstance(layer, Product):
            weight = layer._parameters["weight"]
            assert weight is not None
            yield layer, weight
