"""Matrix products on a CPU by oneDNN instead of MKL, which torch prefers for float32.

Measured on an AMD CPU with AVX-512, one thread, layers of SmolLM2, from 32 rows on: 200 to 240 GFLOP/s, not 105 to 115.
The same float32, so the same numbers but for the order of addition, and no less independent of the batch. It is used
wherever torch has it, and not just where it is faster, because workers must not differ in their last bits.
"""

import torch
from torch import Tensor, nn


class Product(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(input, self.weight, self.bias, "none", [], "")
        return found


def use_onednn(network: nn.Module) -> None:
    """For the plain linear layers. Their weights stay where and what they are."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    for layer in network.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Product
