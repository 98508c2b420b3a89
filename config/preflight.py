"""Whether this machine can run Assay at all. Run by `make` with the machine's own Python, before anything is installed.

Standard library only, and nothing that an old Python could not parse: telling people that theirs is too old is the job.
"""

import sys

if __name__ == "__main__":
    # Python puts this file's folder first, and its logging.py and celery.py are not the ones that libraries mean.
    sys.path.pop(0)

import shutil

OLDEST = (3, 11)
#: The CPU build of torch and the rest take about 1.5 GB, and pip needs room to unpack. CUDA builds take about 7.
ROOM_GB = 3


def problem():
    if sys.version_info[:2] < OLDEST:
        return (
            "Assay needs Python %d.%d or newer; this is %d.%d (%s). "
            "Say where a newer one is: make up PYTHON=/path/to/python3.12"
            % (OLDEST + tuple(sys.version_info[:2]) + (sys.executable,))
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            "This Python cannot make virtual environments: install its venv package (Debian: apt install python3-venv)."
        )
    free_gb = shutil.disk_usage(".").free / 1e9
    if free_gb < ROOM_GB:
        return "There are only %.1f GB free here, and the packages need about %d: make room first." % (free_gb, ROOM_GB)
    return None


if __name__ == "__main__":
    found = problem()
    if found:
        sys.stderr.write(found + "\n")
        sys.exit(1)
