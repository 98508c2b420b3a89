"""Other weights for a model that is loaded: same architecture, no reload. All of them are taken, or none."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tasks.errors import NotAModel, WeightsRefused
from workers.engines.memory import read_header
from workers.engines.model import Model


def swap_weights(model: Model, place: Path, version: str) -> None:
    """Shapes are compared before anything is read, everything is read and checked before anything is changed: what is
    left is copying, which cannot fail halfway. It takes the weights a second time in main memory."""
    files = sorted(place.glob("*.safetensors")) if place.is_dir() else [place] if place.is_file() else []
    if not files:
        raise WeightsRefused(f"no such weights: {place} (a safetensors file, or a directory of them)")
    wanted: dict[str, Tensor] = dict(model.network.state_dict())
    _require_fit(wanted, files)
    fresh = _read(files)
    _require_sound(wanted, fresh)
    with torch.no_grad():
        for name, values in fresh.items():
            wanted[name].copy_(values)
    model.version = version


def _require_fit(wanted: dict[str, Tensor], files: list[Path]) -> None:
    found: dict[str, tuple[int, ...]] = {}
    for file in files:
        try:
            found |= {name: shape for name, (_, shape) in read_header(file).items()}
        except NotAModel as error:
            raise WeightsRefused(str(error)) from error
    if unknown := sorted(found.keys() - wanted.keys()):
        raise WeightsRefused(f"the model has no {unknown[0]} ({len(unknown)} names are unknown)")
    for name, shape in found.items():
        if shape != tuple(wanted[name].shape):
            raise WeightsRefused(f"{name} is {list(shape)}, the model's is {list(wanted[name].shape)}")
    given = {wanted[name].data_ptr() for name in found}  # tied weights are one tensor under two names
    if missing := sorted(name for name, held in wanted.items() if held.data_ptr() not in given):
        raise WeightsRefused(f"{missing[0]} is missing ({len(missing)} are)")


def _read(files: list[Path]) -> dict[str, Tensor]:
    fresh: dict[str, Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt", device="cpu") as opened:
                fresh |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # it has no iterator
        except (OSError, SafetensorError) as error:
            raise WeightsRefused(f"{file.name} cannot be read: {error}") from error
    return fresh


def _require_sound(wanted: dict[str, Tensor], fresh: dict[str, Tensor]) -> None:
    by_place: dict[int, str] = {}
    for name, values in fresh.items():
        if values.is_floating_point() and not values.isfinite().all():
            raise WeightsRefused(f"{name} holds values that are not numbers")
        twin = by_place.setdefault(wanted[name].data_ptr(), name)
        if twin != name and not torch.equal(values, fresh[twin]):
            raise WeightsRefused(f"{name} and {twin} are one in the model, but differ here")
