"""What the driver says of the GPUs a worker is pinned to, by NVML, which makes no CUDA context.

For the worker's parent process: its child has the device. A host without a driver has no GPUs to tell of.
"""

import logging
from collections.abc import Sequence
from typing import Any

from tasks.registry import Gpu

log = logging.getLogger(__name__)

MB = 1 << 20


class Nvml:
    """Opened on first use. `library` is `pynvml`, or what has its functions."""

    def __init__(self, devices: Sequence[str], library: Any = None) -> None:
        """`devices` as in CUDA_VISIBLE_DEVICES, in the order of the PCI bus."""
        self._devices = tuple(devices)
        self._library = library
        self._handles: dict[str, Any] | None = None if devices else {}

    def read(self) -> tuple[Gpu, ...]:
        """One entry for each device that answers."""
        if self._handles is None:
            self._handles = self._open()
        found = (self._gpu(device, handle) for device, handle in self._handles.items())
        return tuple(gpu for gpu in found if gpu)

    def _open(self) -> dict[str, Any]:
        try:
            if self._library is None:
                import pynvml  # type: ignore[import-untyped]  # few workers have a GPU

                self._library = pynvml
            self._library.nvmlInit()
        except ImportError as error:
            log.debug("GPUs are not watched: %s", error)
            return {}
        except self._library.NVMLError as error:
            log.debug("GPUs are not watched: %s", error)
            return {}
        handles = {}
        for device in self._devices:
            try:
                handles[device] = self._handle(device)
            except self._library.NVMLError as error:
                log.debug("GPU %s is not watched: %s", device, error)
        return handles

    def _handle(self, device: str) -> Any:
        if device.isdigit():
            return self._library.nvmlDeviceGetHandleByIndex(int(device))
        if device.startswith("GPU-"):  # CUDA takes the beginning of a name too
            for index in range(self._library.nvmlDeviceGetCount()):
                handle = self._library.nvmlDeviceGetHandleByIndex(index)
                if _text(self._library.nvmlDeviceGetUUID(handle)).startswith(device):
                    return handle
        return self._library.nvmlDeviceGetHandleByUUID(device)

    def _gpu(self, device: str, handle: Any) -> Gpu | None:
        library = self._library
        try:
            uuid, memory = _text(library.nvmlDeviceGetUUID(handle)), library.nvmlDeviceGetMemoryInfo(handle)
            name = _text(library.nvmlDeviceGetName(handle))
        except library.NVMLError as error:  # lost, or being reset; it may come back
            log.debug("GPU %s does not answer: %s", device, error)
            return None
        try:
            utilisation = library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except library.NVMLError:  # a part of a GPU (MIG) has none
            utilisation = None
        return Gpu(device, uuid, utilisation, memory.used // MB, memory.total // MB, name)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
