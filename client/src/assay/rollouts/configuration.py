"""Converts the configuration of an asynchronous trainer to the spec of a rollout. Pure function.

The configuration may be flat, or nested in sections (`data`, `trainer`, `rollout`, `async_training`), as trainers write
it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

#: Sections whose keys are read like top-level keys.
SECTIONS = ("data", "trainer", "rollout", "async_training", "actor_rollout_ref")
#: Keys of a trainer that a rollout ignores, with a warning.
IGNORED_KEYS = ("n_gpus_per_node", "nnodes", "total_training_steps", "max_prompt_length", "gen_batch_size")
IGNORED_REASON = (
    "ignored: the rollout uses the devices of the server, the trainer itself counts steps and prompts, and the only "
    "limit on the length of a prompt is the model's own context."
)
_RENAMED = {"max_response_length": "max_new_tokens", "rollout_n": "n"}
#: Keys that belong into `sampling`.
_SAMPLING = ("n", "temperature", "top_p", "top_k", "max_new_tokens", "stop")


def spec_of(config: Mapping[str, Any] | None, **given: Any) -> dict[str, Any]:
    """Build the spec of a rollout. Ignored keys cause a warning; the server rejects unknown keys."""
    flat = _flat(config or {})
    flat.update({name: value for name, value in given.items() if value is not None})
    flat = {_RENAMED.get(name, name): value for name, value in flat.items()}
    ignored = [name for name in IGNORED_KEYS if flat.pop(name, None) is not None]
    if ignored:
        warnings.warn(f"{', '.join(ignored)}: {IGNORED_REASON}", stacklevel=3)
    if "partial_rollout" in flat:
        flat.setdefault("interrupt", "continue" if flat.pop("partial_rollout") else "finish")
        flat.pop("partial_rollout", None)
    sampling = dict(flat.pop("sampling", {}))
    sampling.update({name: flat.pop(name) for name in _SAMPLING if name in flat})
    if sampling:
        sampling.setdefault("temperature", 1.0)
        flat["sampling"] = sampling
    return flat


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        section, _, inner = name.partition(".")
        if section in SECTIONS and inner:
            flat[inner] = value
        elif name in SECTIONS and isinstance(value, Mapping):
            flat.update(_flat(value))
        else:
            flat[name] = value
    return flat
