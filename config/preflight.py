"""Preflight check of this machine: Python version, venv, disk space. `make` runs it before it installs packages.

Uses only the standard library, and only syntax that an old Python can parse, in order to report that it is too old.
"""

import sys

if __name__ == "__main__":
    # Python puts this file's folder first in the path, where logging.py and celery.py would shadow the libraries.
    sys.path.pop(0)

import shutil

OLDEST = (3, 11)
#: The CPU build of torch and the other packages take about 1.5 GB, and pip needs room to unpack. CUDA builds take
#: about 7 GB.
ROOM_GB = 3


def find_problem():
    """Return a message for the user, or None when this machine can run Assay."""
    if sys.version_info[:2] < OLDEST:
        return (
            "Assay needs Python %d.%d or newer; this is %d.%d (%s). "
            "Name a newer version: make up PYTHON=/path/to/python3.12"
            % (OLDEST + tuple(sys.version_info[:2]) + (sys.executable,))
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            "This Python cannot create virtual environments: install its venv package "
            "(Debian: apt install python3-venv)."
        )
    free_gb = shutil.disk_usage(".").free / 1e9
    if free_gb < ROOM_GB:
        return "Only %.1f GB of disk space are free, and the packages need about %d GB: free disk space first." % (
            free_gb,
            ROOM_GB,
        )
    return None


if __name__ == "__main__":
    found = find_problem()
    if found:
        sys.stderr.write(found + "\n")
        sys.exit(1)
