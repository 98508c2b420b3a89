"""A model as it is held: the weights with their version, and what is asked of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from tasks.inference.engine import Generated, ModelRef
from workers.engines.precision import choose_least_rows
from workers.engines.rows import Row
from workers.engines.slots import round_up

Role = Literal["generate", "reward", "embed"]
"""What a model is loaded for. Likelihoods come from a model that generates."""


@dataclass(slots=True)
class Model:
    ref: ModelRef
    role: Role
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    version: str
    """Of the weights: a hub revision, a fingerprint of the files, or what a swap was told."""
    bytes: int
    longest: int
    """Tokens it takes at most."""
    end_tokens: frozenset[int] = field(init=False)
    least_rows: int = field(init=False)
    """Rows of a product from which on a row's result does not depend on their number; 1 where it always may."""

    def __post_init__(self) -> None:
        self.least_rows = choose_least_rows(self.network.device)
        self.end_tokens = frozenset(_end_tokens(self.network, self.tokenizer))

    @property
    def is_exact(self) -> bool:
        """A row's numbers do not depend on what shares its batch."""
        return self.network.device.type == "cpu" and self.network.dtype == torch.float32

    @property
    def config(self) -> PreTrainedConfig:
        return self.network.config.get_text_config()

    @property
    def device(self) -> torch.device:
        """Where its inputs go: of several devices, the first one's."""
        return self.network.device

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token."""
        config = self.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * self.layers * heads * size * self.network.dtype.itemsize)

    def width(self, length: int) -> int:
        """The places that a text of this length is run with, padding included. On a CPU it is rounded up, and then each
        row of a product is computed in the same way whatever the batch: see `choose_least_rows` and `STEP`."""
        return round_up(max(length, self.least_rows)) if self.least_rows > 1 else length

    def forward(self, **inputs: Any) -> Tensor:
        """The logits of each row's last token."""
        found = self.network(**inputs, use_cache=True, logits_to_keep=1)
        logits: Tensor = found.logits
        return logits[:, -1]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def answer(self, row: Row) -> Generated:
        return row.answer(self.decode)


def _end_tokens(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Instruction-tuned models end with another token than their base: both files are asked."""
    settings = getattr(network, "generation_config", None)
    found = [getattr(settings, "eos_token_id", None), tokenizer.eos_token_id]
    flat = [each for one in found for each in (one if isinstance(one, list) else [one])]
    return {int(each) for each in flat if each is not None}
