"""On what, and in which precision, models run here."""

import logging

import torch

from tasks.inference.engine import Dtype

log = logging.getLogger(__name__)


def choose_device() -> torch.device:
    """The launcher has hidden what belongs to other slots: what is visible is ours."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_dtype(asked: Dtype, device: torch.device) -> torch.dtype:
    """`auto` is half precision on GPUs and `float32` on CPUs, where answers then do not depend on their company.

    A CPU without instructions for bfloat16 takes three times as long with it, and none here is fast with float16.
    """
    if device.type == "cuda":
        if asked == "auto":
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
        return _BY_NAME[asked]
    if asked == "bfloat16" and cpu_has_bfloat16():
        return torch.bfloat16
    if asked not in ("auto", "float32"):
        log.warning("this CPU is slow with %s: float32 is used", asked)
    return torch.float32


def cpu_has_bfloat16() -> bool:
    known = torch.cpu.get_capabilities()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def choose_least_rows(device: torch.device) -> int:
    """The rows a forward must have so that a row's result does not depend on how many there are; 1: it always does.

    Measured with MKL on AVX2 and AVX-512: from four rows a thread on, every row of a product is bitwise the same.
    """
    return 4 * torch.get_num_threads() if device.type == "cpu" else 1


_BY_NAME = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
