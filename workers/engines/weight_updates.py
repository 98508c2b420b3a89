"""Weight updates of a loaded model: same architecture, no reload, atomic (every tensor is replaced, or none).

`read_weights` needs no model and may run in another thread while the model generates; `apply_weights` only copies.
Files are read into memory completely, not memory-mapped, because their writer may overwrite them.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.connections import redact
from tasks.errors import AssayError, StorageUnavailable, WeightsRefused
from workers.engines.memory import MOST_HEADER_BYTES
from workers.engines.model import Model
from workers.engines.onednn import unpack

#: Bytes that are read and hashed at a time.
PIECE_BYTES = 8 << 20
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class ReadWeights:
    """Implements tasks.inference.engine.Weights."""

    tensors: dict[str, Tensor]
    bytes: int


def read_weights(uri: str, sha256: str = "") -> ReadWeights:
    """Read and check a safetensors file, or a folder of them, from a path or any URI that fsspec supports.

    `sha256` is the checksum of the file; for a folder, the checksum of the output of `sha256sum *.safetensors`. Raises
    WeightsRefused or StorageUnavailable.
    """
    tensors: dict[str, Tensor] = {}
    sums: dict[str, str] = {}
    size = 0
    with _explained(uri):
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # few processes need it

        filesystem, root = url_to_fs(uri)
        is_folder = filesystem.isdir(root)
        paths = sorted(filesystem.glob(f"{root.rstrip('/')}/*.safetensors")) if is_folder else [root]
        if not paths or not filesystem.isfile(paths[0]):
            raise WeightsRefused(f"no such weights: {redact(uri)} (a safetensors file, or a folder of them)")
        for path in paths:
            name = path.rsplit("/", 1)[-1]
            held, sums[name] = _load(filesystem, path)
            size += len(held)
            tensors |= _parse(held, name)
    found = next(iter(sums.values()))
    if is_folder:
        found = hashlib.sha256("".join(f"{each}  {name}\n" for name, each in sums.items()).encode()).hexdigest()
    if sha256 and found != sha256.lower():
        raise WeightsRefused(f"the checksum of {redact(uri)} is {found[:12]}..., not {sha256[:12]}...")
    _require_numbers(tensors)
    return ReadWeights(tensors, size)


def apply_weights(model: Model, weights: ReadWeights, version: str) -> None:
    """Copy the weights into the model. Names and shapes are checked first, so that the copy cannot fail halfway. Raises
    WeightsRefused."""
    unpack(model.network)
    wanted: dict[str, Tensor] = dict(model.network.state_dict())
    _require_fit(wanted, weights.tensors)
    with torch.no_grad():
        for name, values in weights.tensors.items():
            wanted[name].copy_(values)
    model.version = version


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        yield
    except AssayError:
        raise
    except FileNotFoundError as error:
        raise WeightsRefused(f"no such weights: {redact(uri)}") from error
    except Exception as error:  # every fsspec backend raises its own types
        raise StorageUnavailable(f"{redact(uri)} cannot be read: {error}") from error


def _load(filesystem: Any, path: str) -> tuple[Tensor, str]:
    """Return a file's bytes and their checksum."""
    digest = hashlib.sha256()
    with filesystem.open(path, "rb", block_size=PIECE_BYTES) as file:
        size = int(file.seek(0, 2))
        file.seek(0)
        held = torch.empty(size, dtype=torch.uint8)
        view, at = held.numpy().data, 0
        while count := file.readinto(view[at : at + PIECE_BYTES]):
            digest.update(view[at : at + count])
            at += count
    return held[:at], digest.hexdigest()


def _parse(held: Tensor, name: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file as views of its bytes."""
    try:
        (length,) = struct.unpack("<Q", bytes(held[:8].numpy()))
        if length > MOST_HEADER_BYTES:
            raise ValueError("its header is too long")
        header = json.loads(bytes(held[8 : 8 + length].numpy()))
        header.pop("__metadata__", None)
        return {each: _tensor(held[8 + length :], about) for each, about in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise WeightsRefused(f"{name} is not a complete safetensors file ({error})") from error


def _tensor(held: Tensor, about: dict[str, Any]) -> Tensor:
    first, last = about["data_offsets"]
    dtype = _DTYPES[about["dtype"]]
    part = held[first:last]
    if part.storage_offset() % dtype.itemsize:
        part = part.clone()
    return part.view(dtype).view(about["shape"])


def _require_numbers(tensors: dict[str, Tensor]) -> None:
    for name, values in tensors.items():
        if values.is_floating_point() and values.numel():
            low, high = values.aminmax()  # both are NaN if one value is NaN
            if not (low.isfinite() and high.isfinite()):
                raise WeightsRefused(f"{name} contains values that are NaN or infinite")


def _require_fit(wanted: dict[str, Tensor], fresh: dict[str, Tensor]) -> None:
    if unknown := sorted(fresh.keys() - wanted.keys()):
        raise WeightsRefused(f"the model has no weight {unknown[0]} ({len(unknown)} names are unknown)")
    by_place: dict[int, str] = {}  # tied weights are a single tensor under two names
    for name, values in fresh.items():
        if values.shape != wanted[name].shape:
            raise WeightsRefused(f"{name} is {list(values.shape)}, the model's is {list(wanted[name].shape)}")
        twin = by_place.setdefault(wanted[name].data_ptr(), name)
        if twin != name and not torch.equal(values, fresh[twin]):
            raise WeightsRefused(f"{name} and {twin} are tied in the model, but differ in the update")
    if missing := sorted(name for name, held in wanted.items() if held.data_ptr() not in by_place):
        raise WeightsRefused(f"{missing[0]} is missing from the update ({len(missing)} weights are)")
