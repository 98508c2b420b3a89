"""Choice of a simulator's renderer, made before its Python process starts, because MuJoCo reads it at import."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: Command that lists the libraries of this system.
LIBRARIES = ("/sbin/ldconfig", "-p")


def has_osmesa() -> bool:
    """Check whether OSMesa is installed. ctypes is not used: it runs a compiler, which leaves a temporary file when
    this worker is killed."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")  # its place on hosts without root access
    if any(any(Path(folder).glob("libOSMesa.so*")) for folder in folders if folder):
        return True
    try:
        run = subprocess.run(LIBRARIES, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a system without this command uses EGL
        return False
    return "libOSMesa.so" in run.stdout


def rendering_environment(devices: Sequence[str], osmesa: bool) -> dict[str, str]:
    """Return the variables of a simulator: EGL on the first GPU; without a GPU OSMesa, or EGL in software.

    CUDA itself is hidden: simulators do not compute with it, and robosuite parses the variable as renderer numbers.
    """
    if devices:
        number = devices[0] if devices[0].isdigit() else "0"  # EGL numbers devices; it does not support UUIDs
        return {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": number, "CUDA_VISIBLE_DEVICES": ""}
    if osmesa:
        return {"MUJOCO_GL": "osmesa", "PYOPENGL_PLATFORM": "osmesa", "CUDA_VISIBLE_DEVICES": ""}
    return {"MUJOCO_GL": "egl", "MUJOCO_EGL_DEVICE_ID": "0", "CUDA_VISIBLE_DEVICES": ""}
