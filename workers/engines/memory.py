"""How much memory models take, and how much there is."""

import ctypes
import gc
import json
import struct
from pathlib import Path

import psutil
import torch
from torch import nn

from tasks.errors import NotAModel

#: Longest header of a safetensors file that is read; the format allows no more.
MOST_HEADER_BYTES = 100_000_000
#: Bits of a weight in a GGUF file, at least; files in use have 4.5 to 8.5, so what is estimated is not too little.
GGUF_BITS = 4.5
GB = 1_000_000_000


def read_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The tensors of a safetensors file: name -> type and shape."""
    try:
        with file.open("rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            if size > MOST_HEADER_BYTES:
                raise ValueError("its header is too long")
            header = json.loads(opened.read(size))
        return {name: (each["dtype"], tuple(each["shape"])) for name, each in header.items() if name != "__metadata__"}
    except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
        raise NotAModel(f"not a model: {file.name} is not a whole safetensors file ({error})") from error


def weights_bytes(folder: Path, gguf: str, dtype: torch.dtype) -> int:
    """What the weights will take once they are loaded with this type."""
    if gguf:  # its list of tensors takes seconds to read
        return int((folder / gguf).stat().st_size * 8 / GGUF_BITS) * dtype.itemsize
    files = sorted(folder.glob("*.safetensors"))
    if files:
        shapes = [shape for file in files for _, shape in read_header(file).values()]
        return sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize
    return sum(file.stat().st_size for file in folder.glob("*.bin"))  # its types are unknown before it is read


def held_bytes(model: nn.Module) -> int:
    """What a loaded model takes; tied weights count once."""
    held = {each.data_ptr(): each.nbytes for each in (*model.parameters(), *model.buffers())}
    return sum(held.values())


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        numbers = range(torch.cuda.device_count())
        idle = sum(torch.cuda.memory_reserved(n) - torch.cuda.memory_allocated(n) for n in numbers)
        return idle + sum(int(torch.cuda.mem_get_info(n)[0]) for n in numbers)
    return psutil.virtual_memory().available


def free_device_memory() -> None:
    """Give back what no one refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def give_back_pages() -> None:
    """Have the C library give freed memory back to the system, that between what is in use too; a millisecond."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; others do it by themselves, or not at all
    if trim:
        trim(0)


def is_out_of_memory(error: BaseException) -> bool:
    """Also on a CPU, whose allocator raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
