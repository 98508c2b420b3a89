"""Which renderer a simulator's process uses; decided before its Python starts, as MuJoCo chooses at import."""

import ctypes.util
from collections.abc import Sequence


def has_osmesa() -> bool:
    return ctypes.util.find_library("OSMesa") is not None


def rendering_environment(devices: Sequence[str], osmesa: bool) -> dict[str, str]:
    """Variables of a simulator beside these GPUs: EGL on the first of them; without one OSMesa, or EGL in software.

    CUDA itself is hidden: simulators do not compute with it, and robosuite reads the variable as numbers of renderers.
    """
    if devices:
        number = devices[0] if devices[0].isdigit() else "0"  # EGL counts devices; it knows no UUIDs
        return {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": number, "CUDA_VISIBLE_DEVICES": ""}
    if osmesa:
        return {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa", "CUDA_VISIBLE_DEVICES": ""}
    return {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "0", "CUDA_VISIBLE_DEVICES": ""}
