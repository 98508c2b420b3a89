"""A stand-in for the module `pynvml` with GPUs that this machine does not have.

A test imports it, or puts a copy named `pynvml` on a path. GPU n computes n tenths of the time and holds n GB of 16;
`MIG-` devices have no utilisation.
"""

import os
from pathlib import Path
from types import SimpleNamespace

GPUS = int(os.environ.get("FAKE_GPUS", "8"))


class NVMLError(Exception):
    pass


def nvmlInit() -> None:
    if not GPUS:
        raise NVMLError("Driver Not Loaded")


def nvmlDeviceGetCount() -> int:
    return GPUS


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if not 0 <= index < GPUS:
        raise NVMLError("Invalid Argument")
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    if uuid == "MIG-1":
        return -1
    raise NVMLError("Not Found")


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-{handle:04d}-fake" if handle >= 0 else "MIG-1"


def nvmlDeviceGetName(_handle: int) -> bytes:  # bytes, as older versions of the library return
    return b"Fake 16"


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:
    return SimpleNamespace(used=max(handle, 0) << 30, total=16 << 30)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:
    if handle < 0:
        raise NVMLError("Not Supported")
    return SimpleNamespace(gpu=10 * handle)


def install(folder: Path) -> str:
    """Write this file as `pynvml.py` and return the folder to put on PYTHONPATH."""
    folder.mkdir(exist_ok=True)
    (folder / "pynvml.py").write_text(Path(__file__).read_text())
    return str(folder)
