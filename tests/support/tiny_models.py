"""Models of a few hundred KB with random weights, for tests in which the text of an answer does not matter."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

SPECIAL = ("<pad>", "<end>", "<user>", "<assistant>")
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """Make a tokenizer with a token for each byte and four special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: at for at, letter in enumerate((*SPECIAL, *letters))}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<end>", extra_special_tokens=list(SPECIAL[2:])
    )
    made.chat_template = CHAT if chat else None
    return made


def llama(**given: Any) -> LlamaConfig:
    settings: dict[str, Any] = {
        "vocab_size": 260,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,  # wide: each prompt then gets a different answer
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    return LlamaConfig(**settings | given)


def bert() -> BertConfig:
    return BertConfig(
        vocab_size=260, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, initializer_range=0.3, pad_token_id=0, num_labels=1,
    )  # fmt: skip


def write(folder: Path, config: PreTrainedConfig | None = None, seed: int = 0, chat: bool = True) -> Path:
    """Write a model directory and return it. The seed decides the weights, not the architecture."""
    torch.manual_seed(seed)
    config = config or llama()
    kind = AutoModelForSequenceClassification if isinstance(config, BertConfig) else AutoModelForCausalLM
    kind.from_config(config).save_pretrained(folder)
    tokenizer(chat).save_pretrained(folder)
    return folder
