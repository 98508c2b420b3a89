"""The docs are complete: every module, endpoint, pool, queue, knob, figure and make target is documented."""

import re
from dataclasses import fields

from config.code_map import code_map
from config.pools import POOLS, STAGE_POOLS
from config.settings import Settings
from tasks.deployment_benchmarks.catalogue import SCENARIOS
from tests.conftest import ROOT
from web.app import create_app
from workers.development_api.knobs import Knobs
from workers.development_policy.knobs import Knobs as PolicyKnobs
from workers.environments.adapters import ADAPTERS
from workers.launch import LAUNCHED

README = (ROOT / "README.md").read_text()
DOCS = "\n".join(page.read_text() for page in (ROOT / "docs").rglob("*.md")) + README


def test_the_code_map_lists_every_module_as_its_docstring_describes_it() -> None:
    assert (ROOT / "docs/code_map.md").read_text() == code_map(), "run `make docs`"


def test_every_endpoint_is_documented() -> None:
    rules = {rule.rule for rule in create_app(Settings()).url_map.iter_rules() if rule.endpoint != "static"}
    assert not {rule for rule in rules if f"`{rule}`" not in DOCS and f" {rule}" not in DOCS}


def test_every_pool_and_queue_is_documented() -> None:
    for name in (*LAUNCHED, *STAGE_POOLS, "gpu.<node>.<n>"):
        assert f"`{name}`" in DOCS or f"launch {name}" in DOCS, name


def test_the_table_of_pools_is_documented() -> None:
    page = (ROOT / "docs/architecture/processes.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE)
    assert dict(rows) == {pool.name: pool.holds for pool in POOLS.values()}


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
    assert undocumented == ["format", "lock", "clean"], "only `make help` lists the other targets"
