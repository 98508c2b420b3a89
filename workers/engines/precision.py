"""Choice of the device and the precision with which models run in this process."""

import logging

import torch

from tasks.inference.engine import Dtype

log = logging.getLogger(__name__)


def choose_device() -> torch.device:
    """Return the GPU if one is visible: the launcher hides the devices of other slots."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(asked: Dtype, device: torch.device) -> torch.dtype:
    """Return the type for the weights. `auto`: half precision on GPUs, `float32` on CPUs.

    In float32 on a CPU an answer does not depend on the other rows of its batch. A CPU without bfloat16 instructions
    takes three times as long with bfloat16, and float16 is slow on every CPU.
    """
    if device.type == "cuda":
        if asked == "auto":
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
        return _BY_NAME[asked]
    if asked == "bfloat16" and cpu_has_bfloat16():
        return torch.bfloat16
    if asked not in ("auto", "float32"):
        log.warning("%s is slow on this CPU: using float32 instead", asked)
    return torch.float32


def cpu_has_bfloat16() -> bool:
    known = torch.cpu.get_capabilities()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def choose_least_rows(device: torch.device) -> int:
    """Return the minimum rows of a forward pass with which a row's result does not depend on the number of rows; 1 on a
    GPU, where it always may.

    Measured with MKL on AVX2 and AVX-512: with four or more rows per thread, every row of a product is bitwise equal.
    """
    return 4 * torch.get_num_threads() if device.type == "cpu" else 1


_BY_NAME = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
