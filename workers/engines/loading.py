"""Loads a model's files onto the device. A broken file raises an error with a short message; the process continues.

With several GPUs in the slot the layers are spread over them (`device_map="auto"`). That code follows the documentation
of transformers and has not been run on such a machine. Tensor parallelism needs a process per GPU, and a slot is a
single process.
"""

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from tasks.errors import ModelTooLarge, ModelUnsupported, NotAModel
from tasks.inference.engine import ModelRef
from workers.engines.kv_cache import ATTENTION, KeyValueCache, decoding_mask, register_attention, round_up
from workers.engines.memory import GB, held_bytes, is_out_of_memory
from workers.engines.model import Model, Role
from workers.engines.model_files import ModelFiles
from workers.engines.onednn import pack, plain_tensors, use_onednn

_CLASSES: dict[Role, Any] = {
    "generate": AutoModelForCausalLM,
    "reward": AutoModelForSequenceClassification,
    "embed": AutoModel,
}
#: Exceptions that transformers raises for files that it cannot load as a model.
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError, SafetensorError)
#: Prefixes of weights that embeddings do not need, so that a file may lack them.
_UNUSED = ("pooler.",)
#: Layer types whose state is keys and values only, because `KeyValueCache` stores nothing else.
_LAYERS = {"full_attention", "sliding_attention"}
#: Maximum difference of the logits between the two ways to run a model, relative to their standard deviation. Half
#: precision is coarse.
_CLOSE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


def load(ref: ModelRef, role: Role, source: ModelFiles, dtype: torch.dtype, device: torch.device, needed: int) -> Model:
    """Load a model and verify that our batches reproduce its own logits. Raises ModelUnusable.

    `needed`: estimated bytes, for the message of an out-of-memory error.
    """
    register_attention()
    with quiet(), _explained(ref, needed):
        options: dict[str, Any] = {"gguf_file": source.gguf} if source.gguf else {}
        tokenizer = AutoTokenizer.from_pretrained(source.folder, local_files_only=True, **options)
        if device.type == "cuda":
            options["device_map"] = "auto" if torch.cuda.device_count() > 1 else device
        if role == "generate":
            options["attn_implementation"] = ATTENTION
        network, found = _CLASSES[role].from_pretrained(
            source.folder, dtype=dtype, local_files_only=True, output_loading_info=True, **options
        )
    _require_whole(ref, role, found)
    if source.gguf:
        _forget_quantization(network)
    _pad(network, tokenizer)
    if device.type == "cpu":
        with _explained(ref, needed):
            if dtype is torch.float32:
                use_onednn(network)
                if not ref.copy:  # a rollout's copy gets weight updates: generation waits for them, and packing is slow
                    pack(network)
            _detach(network)
    model = Model(
        ref,
        role,
        network.eval(),
        tokenizer,
        source.version,
        held_bytes(network),
        _max_length(network, tokenizer, source),
    )
    if role == "generate":
        with _explained(ref, needed, verifying=True):
            verify(model)
    return model


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and warnings of transformers. Real problems are raised as errors by the caller."""
    level, shows_bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if shows_bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def _explained(ref: ModelRef, needed: int, verifying: bool = False) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        if is_out_of_memory(error):
            raise ModelTooLarge(f"out of memory: {ref} needs about {needed / GB:.1f} GB") from error
        if verifying or ATTENTION in str(error):
            raise ModelUnsupported(
                f"{ref}: the engine does not support models of this architecture: {_first_line(error)}"
            ) from error
        raise NotAModel(f"not a model: {ref} cannot be loaded: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.split("\n")[0][:300]


def _require_whole(ref: ModelRef, role: Role, found: dict[str, Any]) -> None:
    """Raise NotAModel if weights are missing: transformers initialises them randomly, so answers would be noise."""
    missing = sorted(name for name in found["missing_keys"] if role != "embed" or not name.startswith(_UNUSED))
    if missing or found.get("mismatched_keys"):
        names = ", ".join(missing[:3]) or "some shapes differ from config.json"
        raise NotAModel(f"not a model for this use ({role}): {ref} lacks weights: {names}")


def _detach(network: PreTrainedModel) -> None:
    """Copy the weights into memory of this process. Before, they are the memory-mapped file: another process may
    overwrite it, and the first weight update would copy it page by page, a second for each half gigabyte, while
    generation waits."""
    for each in plain_tensors(network):
        each.data = each.data.clone()


def _forget_quantization(network: PreTrainedModel) -> None:
    """Remove the quantization marks of a model from a GGUF file: its weights are dequantized by now."""
    for name in ("hf_quantizer", "is_quantized", "quantization_method"):
        network.__dict__.pop(name, None)
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config


def _pad(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Define a padding token, which batches of texts need, for models without a padding token."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    tokenizer.padding_side = "right"
    config = network.config.get_text_config()
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id


def _max_length(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: ModelFiles) -> int:
    """Return the smallest maximum length of: the network, its tokenizer and, for models of sentence-transformers, the
    file `sentence_bert_config.json`."""
    limit = getattr(network.config.get_text_config(), "max_position_embeddings", None) or 1_000_000
    advice = source.folder / "sentence_bert_config.json"
    trained = json.loads(advice.read_text()).get("max_seq_length") if advice.is_file() else None
    return int(min(limit, tokenizer.model_max_length, trained or limit))


@torch.inference_mode()
def verify(model: Model) -> None:
    """Compare the logits of a plain forward pass with our batched decoding, for two rows of different length.

    Raises ModelUnsupported for an architecture whose state is more than keys and values, or uses other positions:
    the batch would compute wrong answers.
    """
    kinds = set(getattr(model.config, "layer_types", None) or ())
    if not kinds <= _LAYERS:
        raise ModelUnsupported(
            f"{model.ref}: its layers ({', '.join(sorted(kinds))}) keep more state than keys and values"
        )
    texts = [torch.arange(n) * 7919 % model.config.vocab_size for n in (37, 22)]
    wanted = torch.cat([model.forward(input_ids=text[None].to(model.device)) for text in texts]).float()
    cache = KeyValueCache(model.layers)
    cache.resize(2, 64)
    for at, text in enumerate(texts):
        cache.fill(at, 1)
        width = round_up(len(text) - 2)
        prompt = torch.zeros(1, width, dtype=torch.long)
        prompt[0, : len(text) - 2] = text[:-2]
        positions = torch.arange(width, device=model.device)[None]
        model.forward(input_ids=prompt.to(model.device), position_ids=positions, past_key_values=cache)
    for back in (2, 1):
        places = torch.tensor([len(text) - back for text in texts], device=model.device)
        cache.extend(places, int(places.max()))
        tokens = torch.stack([text[-back] for text in texts])[:, None].to(model.device)
        mask = decoding_mask(model.config, places, cache.window)
        got = model.forward(input_ids=tokens, position_ids=places[:, None], past_key_values=cache, attention_mask=mask)
    apart = (got.float() - wanted).abs().max() / wanted.std()
    if not apart < _CLOSE[model.network.dtype]:
        raise ModelUnsupported(
            f"{model.ref}: {type(model.network).__name__} computes different logits in the engine's batches"
        )
