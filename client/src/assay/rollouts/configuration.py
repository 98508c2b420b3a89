"""From the configuration of an asynchronous trainer to what a rollout of the server is asked. Pure.

The configuration may be flat, or in sections (`data`, `trainer`, `rollout`, `async_training`), as trainers write it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

#: Sections whose keys are read as if they stood outside.
SECTIONS = ("data", "trainer", "rollout", "async_training", "actor_rollout_ref")
#: Keys that a rollout does not read.
ELSEWHERE = ("n_gpus_per_node", "nnodes", "total_training_steps", "max_prompt_length", "gen_batch_size")
UNUSED = (
    "not used here: devices are those the server has, steps and their prompts are the trainer's to count, and a prompt "
    "is refused for its length only by the model's own context."
)
_RENAMED = {"max_response_length": "max_new_tokens", "rollout_n": "n"}
#: What belongs into `sampling`.
_SAMPLING = ("n", "temperature", "top_p", "top_k", "max_new_tokens", "stop")


def spec_of(config: Mapping[str, Any] | None, **given: Any) -> dict[str, Any]:
    """What the server is asked. Keys that mean nothing there are left out, with a warning; unknown ones it refuses."""
    flat = _flat(config or {})
    flat.update({name: value for name, value in given.items() if value is not None})
    flat = {_RENAMED.get(name, name): value for name, value in flat.items()}
    useless = [name for name in ELSEWHERE if flat.pop(name, None) is not None]
    if useless:
        warnings.warn(f"{', '.join(useless)}: {UNUSED}", stacklevel=3)
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
