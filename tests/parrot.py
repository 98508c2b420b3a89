"""An installed package with an inference backend of its own, which needs no model: for tests of all around it."""

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
    """The package's files, as pip would leave them; whoever has the folder on its path has the backend."""
    (about := folder / "parrot-1.0.dist-info").mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parrot\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[assay.backends]\nparrot = parrot_backend:Parrot\n")
    (folder / "parrot_backend.py").write_text(_CODE)
    return folder


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, for as long as the test runs."""
    monkeypatch.syspath_prepend(str(write_package(folder)))
    installed.class_of.cache_clear()
    installed.instance.cache_clear()
