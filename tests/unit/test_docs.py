"""What the docs say is there, and what is there is in the docs."""

import re
from dataclasses import fields

import pytest

from config.queues import API, CPU
from config.settings import Settings
from tasks.benchmarks.catalogue import SCENARIOS
from tests.conftest import ROOT
from web.app import create_app
from workers.development_api.knobs import Knobs
from workers.development_policy.knobs import Knobs as PolicyKnobs
from workers.environments.adapters import ADAPTERS
from workers.launch import POOLS

README = (ROOT / "README.md").read_text()
DOCS = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md")) + README


@pytest.mark.parametrize("room", ["config", "tasks", "web", "workers", "client", "examples"])
def test_readme_has_a_line_for_every_module(room: str) -> None:
    missing = [
        path.name for path in (ROOT / room).rglob("*.py") if path.name != "__init__.py" and path.name not in README
    ]
    assert not missing


def test_readme_names_no_module_that_is_gone() -> None:
    tree = README.partition("## The files")[2].partition("## What")[0]
    named = set(re.findall(r"\b(\w+\.py)\b", tree))
    assert named <= {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}


def test_every_endpoint_is_documented() -> None:
    rules = {rule.rule for rule in create_app(Settings()).url_map.iter_rules() if rule.endpoint != "static"}
    assert not {rule for rule in rules if f"`{rule}`" not in DOCS and f" {rule}" not in DOCS}


def test_every_pool_and_queue_is_documented() -> None:
    for name in (*POOLS, API, CPU, "gpu.<node>.<n>"):
        assert f"`{name}`" in DOCS or f"launch {name}" in DOCS, name


def test_every_knob_of_the_development_api_is_documented() -> None:
    page = (ROOT / "docs/development_api.md").read_text()
    assert not [field.name for field in fields(Knobs) if f"`{field.name}`" not in page]


def test_every_knob_of_the_development_policy_is_documented() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    assert not [field.name for field in fields(PolicyKnobs) if f"| `{field.name}` |" not in page]


def test_every_adapter_is_documented_with_its_success_rule() -> None:
    page = (ROOT / "docs/policies.md").read_text()
    assert not [name for name, adapter in ADAPTERS.items() if f"| `{name}` | {adapter.rule} |" not in page]


def test_every_figure_of_a_benchmark_is_documented() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    names = {figure.name for scenario in SCENARIOS.values() for figure in scenario.figures}
    assert not {name for name in names if f"`{name}`" not in page}


def test_every_make_target_is_documented() -> None:
    targets = re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text())
    undocumented = [target for target in targets if f"make {target}" not in DOCS]
    assert undocumented == ["format", "lock", "clean"], "these are listed by `make help` only"
