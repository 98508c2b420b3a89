"""A loaded model: network, tokenizer, the version of its weights, and the properties that batching needs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from tasks.inference.engine import Generated, ModelRef
from workers.engines.kv_cache import round_up
from workers.engines.precision import choose_least_rows
from workers.engines.rows import Row

Role = Literal["generate", "reward", "embed"]
"""The use that a model is loaded for. Likelihoods are computed by a model loaded for `generate`."""


@dataclass(slots=True)
class Model:
    ref: ModelRef
    role: Role
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    version: str
    """Version of the weights: a hub revision, a fingerprint of the files, or the version given with an update."""
    bytes: int
    max_length: int
    """Maximum tokens of an input."""
    end_tokens: frozenset[int] = field(init=False)
    least_rows: int = field(init=False)
    """Minimum rows of a matrix product with which a row's result does not depend on the number of rows; 1 on devices
    where the result may always depend on it."""

    def __post_init__(self) -> None:
        self.least_rows = choose_least_rows(self.network.device)
        self.end_tokens = frozenset(_end_tokens(self.network, self.tokenizer))

    @property
    def is_exact(self) -> bool:
        """Whether a row's numbers are independent of the other rows of its batch."""
        return self.network.device.type == "cpu" and self.network.dtype == torch.float32

    @property
    def config(self) -> PreTrainedConfig:
        return self.network.config.get_text_config()

    @property
    def device(self) -> torch.device:
        """Device for inputs: the first device if the layers are spread over several."""
        return self.network.device

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def kv_bytes(self) -> int:
        """Bytes that the keys and values of a token need."""
        config = self.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * self.layers * heads * size * self.network.dtype.itemsize)

    def width(self, length: int) -> int:
        """Return the padded length with which a text of this length is run. On a CPU it is rounded up, so that each row
        of a product is computed identically in every batch: see `choose_least_rows` and `STEP`."""
        return round_up(max(length, self.least_rows)) if self.least_rows > 1 else length

    def forward(self, **inputs: Any) -> Tensor:
        """Return the logits of each row's last token."""
        found = self.network(**inputs, use_cache=True, logits_to_keep=1)
        logits: Tensor = found.logits
        return logits[:, -1]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def answer(self, row: Row) -> Generated:
        return row.answer(self.decode)


def _end_tokens(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the end tokens of the generation config and of the tokenizer: instruction-tuned models end with a
    different token than their base model."""
    settings = getattr(network, "generation_config", None)
    found = [getattr(settings, "eos_token_id", None), tokenizer.eos_token_id]
    flat = [each for one in found for each in (one if isinstance(one, list) else [one])]
    return {int(each) for each in flat if each is not None}
