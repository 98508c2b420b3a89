"""An installed package with its own inference backend, which needs no model: for tests of the code around backends."""

from pathlib import Path

import pytest

from tasks.inference.backends import installed

_CODE = """
import os, time

class Parrot:
    pool = "device"

    def generate_answer(self, query, context, retrieval_method):
        time.sleep(float(os.environ.get("PARROT_S", "0")))
        if journal := os.environ.get("PARROT_JOURNAL"):
            with open(journal, "a") as file:
                file.write(query + "\\n")
        if "fail" in query and not os.path.exists(os.environ.get("PARROT_MENDED", "/nowhere/at/all")):
            raise RuntimeError("the parrot is not well")
        return "" if "silent" in query else f"{query.upper()} ({len(context)})"
"""


def write_package(folder: Path) -> Path:
    """Write the package as pip would install it. A process with the folder on its path finds the backend."""
    (about := folder / "parrot-1.0.dist-info").mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[assay.backends]\nparrot = parrot_backend:Parrot\n")
    (folder / "parrot_backend.py").write_text(_CODE)
    return folder


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package in this process while the test runs."""
    monkeypatch.syspath_prepend(str(write_package(folder)))
    installed.class_of.cache_clear()
    installed.instance.cache_clear()
