"""Imports between the packages point in a single direction, and importing a module has no side effects."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

ALLOWED = {
    "config": {"config"},
    "tasks": {"config", "tasks"},
    "web": {"config", "tasks", "web"},
    "workers": {"config", "tasks", "workers"},
}


#: Packages of job kinds, and packages that only kinds use. The job core imports neither.
OF_KINDS = {
    "deployment_benchmarks",
    "episodes",
    "inference",
    "judging",
    "rollouts",
    "scoring",
    "simulated",
    "composition",
    "kinds",
}


def imported_modules(path: Path) -> set[str]:
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def imported(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imported_modules(path)}


def imported_packages(path: Path) -> set[str]:
    return imported(path) & (ALLOWED.keys() | {"client", "bench", "tests"})


@pytest.mark.parametrize("room", ALLOWED)
def test_a_package_imports_only_packages_below_it(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        assert imported_packages(path) <= ALLOWED[room], path


def test_the_job_core_imports_no_kind_and_no_package_that_only_kinds_use() -> None:
    core = [*(ROOT / "tasks/jobs").rglob("*.py"), *(ROOT / "tasks/providers").rglob("*.py"), ROOT / "tasks/runtime.py"]
    assert len(core) > 20
    for path in core:
        parts = {tuple(module.split(".")) for module in imported_modules(path)}
        assert not [each for each in parts if each[0] == "tasks" and len(each) > 1 and each[1] in OF_KINDS], path


def test_the_client_and_the_server_do_not_import_each_other() -> None:
    for path in (ROOT / "client").rglob("*.py"):
        assert not imported_packages(path), path
    for path in (path for room in ALLOWED for path in (ROOT / room).rglob("*.py")):
        assert "assay" not in imported(path), path


def in_new_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_web_process_imports_neither_workers_nor_torch() -> None:
    loaded = in_new_python("import sys, web.wsgi; print(*sys.modules)").split()
    assert "web.wsgi" in loaded
    assert not [name for name in loaded if name.split(".")[0] in ("workers", "torch", "transformers", "tokenizers")]


def test_the_launcher_and_a_workers_parent_do_not_import_torch() -> None:
    loaded = in_new_python("import sys, workers.launch, workers.up; print(*sys.modules)").split()
    assert "torch" not in loaded


def test_importing_any_module_opens_no_connection_and_configures_no_logging() -> None:
    entry_points = {"web.gunicorn_config", "web.wsgi", "workers.celery", "assay.__main__"}
    modules = {
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for room in ALLOWED
        for path in (ROOT / room).rglob("*.py")
    }
    client = ROOT / "client/src"
    modules |= {
        str(path.relative_to(client).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in client.rglob("*.py")
    }
    code = f"""
import importlib, logging, os, socket, sys
sys.path.append({str(client)!r})
before = dict(os.environ)
def refuse(*_): raise AssertionError("connected at import")
socket.socket.connect = refuse
for name in {sorted(modules - entry_points)!r}:
    importlib.import_module(name)
assert not logging.getLogger().handlers, "logging configured at import"
for known in (before, os.environ):
    known.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch sets it, in this process or in its parent
assert os.environ == before
print("clean")
"""
    assert in_new_python(code) == "clean"
