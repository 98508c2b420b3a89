"""Reader of the state of a worker's GPUs, through NVML, which creates no CUDA context.

The worker's parent process uses it, while its child uses the device. A host without a driver reports no GPUs.
"""

import logging
from collections.abc import Sequence
from typing import Any

from tasks.worker_registry import Gpu

log = logging.getLogger(__name__)

MB = 1 << 20


class Nvml:
    """NVML handles, opened on first use. `library` is `pynvml`, or an object with its functions."""

    def __init__(self, devices: Sequence[str], library: Any = None) -> None:
        """`devices` as in CUDA_VISIBLE_DEVICES, in the order of the PCI bus."""
        self._devices = tuple(devices)
        self._library = library
        self._handles: dict[str, Any] | None = None if devices else {}

    def read(self) -> tuple[Gpu, ...]:
        """Return an entry for each device that answers."""
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
            log.debug("GPUs are not monitored: %s", error)
            return {}
        except self._library.NVMLError as error:
            log.debug("GPUs are not monitored: %s", error)
            return {}
        handles = {}
        for device in self._devices:
            try:
                handles[device] = self._handle(device)
            except self._library.NVMLError as error:
                log.debug("GPU %s is not monitored: %s", device, error)
        return handles

    def _handle(self, device: str) -> Any:
        if device.isdigit():
            return self._library.nvmlDeviceGetHandleByIndex(int(device))
        if device.startswith("GPU-"):  # CUDA also accepts a prefix of a UUID
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
        except library.NVMLError as error:  # the GPU is lost or being reset, and may recover
            log.debug("GPU %s does not answer: %s", device, error)
            return None
        try:
            utilisation = library.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except library.NVMLError:  # a part of a GPU (MIG) does not report utilisation
            utilisation = None
        return Gpu(device, uuid, utilisation, memory.used // MB, memory.total // MB, name)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
