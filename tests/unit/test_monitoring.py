"""Alert rules and Grafana dashboard: validated by promtool, and restricted to the metrics of `/metrics`."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from web.metrics.catalogue import METRICS

MONITORING = ROOT / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "grafana/dashboards/assay.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"][0]["rules"]
#: Metrics of Prometheus itself.
PROMETHEUS_METRICS = {"up", "ALERTS"}
#: Values for Grafana's variables.
VARIABLES = {"$__rate_interval": "1m"}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian package `prometheus`)"
)


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            query: str = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield query


def promtool(*arguments: str, folder: Path = MONITORING) -> str:
    run = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\b(assay_\w+|up|ALERTS)\b", query))


@needs_promtool
def test_the_rules_are_valid_and_each_alert_has_a_test() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", "rules.yml")
    promtool("test", "rules", "rules_test.yml")
    tested = {
        test["alertname"]
        for group in yaml.safe_load((MONITORING / "rules_test.yml").read_text())["tests"]
        for test in group["alert_rule_test"]
        if test["exp_alerts"]
    }
    assert tested == {rule["alert"] for rule in RULES}


@needs_promtool
def test_prometheus_accepts_the_configuration(tmp_path: Path) -> None:
    text = (MONITORING / "prometheus.yml").read_text()
    (tmp_path / "token").write_text("secret")
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/metrics_token", str(tmp_path / "token")))
    shutil.copy(MONITORING / "rules.yml", tmp_path)
    promtool("check", "config", "prometheus.yml", folder=tmp_path)


@needs_promtool
def test_prometheus_accepts_every_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = list(dashboard_queries())
    assert len(queries) > 40
    rules = [{"record": f"query_{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", "queries.yml", folder=tmp_path)


def test_rules_and_dashboard_use_only_exported_metrics() -> None:
    exported = PROMETHEUS_METRICS.copy()
    for metric in METRICS:
        parts = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
        exported |= {f"{metric.sample}{part}" for part in parts}
    queries = [*dashboard_queries(), *(rule["expr"] for rule in RULES)]
    assert all(metrics_in(query) for query in queries)
    assert not {name for query in queries for name in metrics_in(query)} - exported


def test_queries_use_only_labels_of_their_metrics() -> None:
    known = {metric.sample: {*metric.labels, "le"} for metric in METRICS}
    for query in [*dashboard_queries(), *(rule["expr"] for rule in RULES)]:
        for name, chosen in re.findall(r"(assay_\w+)\{([^}]*)\}", query):
            metric = re.sub(r"_(bucket|sum|count)$", "", name)
            assert set(re.findall(r"(\w+)\s*[=!]", chosen)) <= known[metric], query


def test_every_alert_is_documented_and_has_a_summary_and_a_description() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    for rule in RULES:
        assert f"`{rule['alert']}`" in page, rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_panels_do_not_overlap() -> None:
    seen: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & seen, panel["title"]
        assert all(x < 24 for x, _ in cells)
        seen |= cells
