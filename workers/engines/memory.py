"""Memory of models and devices: estimate it, measure it, and return freed memory to the system."""

import ctypes
import gc
import json
import struct
from pathlib import Path

import psutil
import torch
from torch import nn

from tasks.errors import NotAModel

#: Maximum length of a safetensors file's header; the format sets the same limit.
MOST_HEADER_BYTES = 100_000_000
#: Minimum bits of a weight in a GGUF file. Common files have 4.5 to 8.5 bits, so the estimate is never too small.
GGUF_BITS = 4.5
GB = 1_000_000_000


def read_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the tensors of a safetensors file: name -> type and shape. Raises NotAModel."""
    try:
        with file.open("rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            if size > MOST_HEADER_BYTES:
                raise ValueError("its header is too long")
            header = json.loads(opened.read(size))
        return {name: (each["dtype"], tuple(each["shape"])) for name, each in header.items() if name != "__metadata__"}
    except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
        raise NotAModel(f"not a model: {file.name} is not a complete safetensors file ({error})") from error


def weights_bytes(folder: Path, gguf: str, dtype: torch.dtype) -> int:
    """Estimate the memory of the weights once they are loaded with this type."""
    if gguf:  # reading its list of tensors would take seconds
        return int((folder / gguf).stat().st_size * 8 / GGUF_BITS) * dtype.itemsize
    files = sorted(folder.glob("*.safetensors"))
    if files:
        shapes = [shape for file in files for _, shape in read_header(file).values()]
        return sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize
    return sum(file.stat().st_size for file in folder.glob("*.bin"))  # types are unknown until the file is read


def held_bytes(model: nn.Module) -> int:
    """Return the memory of a loaded model; tied weights count once."""
    held = {each.data_ptr(): each.nbytes for each in (*model.parameters(), *model.buffers())}
    return sum(held.values())


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        numbers = range(torch.cuda.device_count())
        idle = sum(torch.cuda.memory_reserved(n) - torch.cuda.memory_allocated(n) for n in numbers)
        return idle + sum(int(torch.cuda.mem_get_info(n)[0]) for n in numbers)
    return psutil.virtual_memory().available


def free_device_memory() -> None:
    """Collect unreachable objects and return the memory that the CUDA allocator caches."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def trim_heap() -> None:
    """Have the C library return free pages to the system, also pages between blocks in use. Takes a millisecond."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only; other C libraries do it themselves or never
    if trim:
        trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means out of memory, on a CPU too, where torch raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
