"""Which renderer a simulator's process uses; decided before its Python starts, as MuJoCo chooses at import."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: Lists the libraries that this system knows.
LIBRARIES = ("/sbin/ldconfig", "-p")


def has_osmesa() -> bool:
    """ctypes would run a compiler to find out, whose temporary file stays behind when this worker is killed."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")  # where it lies on hosts whose users are not root
    if any(any(Path(folder).glob("libOSMesa.so*")) for folder in folders if folder):
        return True
    try:
        run = subprocess.run(LIBRARIES, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a system without such a list: then EGL is tried
        return False
    return "libOSMesa.so" in run.stdout


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
