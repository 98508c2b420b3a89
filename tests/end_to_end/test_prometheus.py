"""A real Prometheus scrapes the real web processes, and its queries return their figures."""

import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.settings import Settings
from tests.conftest import ROOT
from tests.support.fleet import Fleet
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program, wait_until
from tests.unit.test_monitoring import dashboard_queries
from web.tokens import main as make_token


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus here (Debian has it)")
def test_prometheus_reads_the_figures_of_all_processes_through_one_address(
    run: Callable[..., Program],
    settings: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens_file, port, prometheus_port = tmp_path / "tokens.jsonl", free_port(), free_port()
    monkeypatch.setenv("ASSAY_TOKENS_FILE", str(tokens_file))
    assert make_token(["add", "prometheus"]) == 0
    secret = capsys.readouterr().out.strip()
    (tmp_path / "token").write_text(secret)

    web = run(
        "gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app",
        ASSAY_REDIS_URL=settings.redis_url, ASSAY_PORT=str(port), ASSAY_TOKENS_FILE=str(tokens_file),
        ASSAY_WEB_PROCESSES="2",
    )  # fmt: skip

    def ask(path: str) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {secret}", "Connection": "close"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return bytes(reply.read())

    web.wait_for(r"(?s)Booting worker.*Booting worker")
    wait_until(lambda: _answers(ask), "the web process answers")
    fleet = Fleet(settings, tmp_path / "journal")
    hand = fleet.hire()
    job = fleet.submit(*({"x": x} for x in range(7)))
    assert fleet.finish(job, hand).state == "done"
    fleet.close()
    for _ in range(20):  # either web process may serve a request
        ask("/v1/jobs")

    configuration = yaml.safe_load((ROOT / "monitoring/prometheus.yml").read_text())
    (scrape,) = configuration["scrape_configs"]
    configuration["global"]["scrape_interval"] = configuration["global"]["evaluation_interval"] = (
        "5s"  # a scrape may take as long
    )
    configuration["rule_files"] = [str(ROOT / "monitoring/rules.yml")]
    scrape["authorization"]["credentials_file"] = str(tmp_path / "token")
    scrape["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    run(
        "prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{prometheus_port}",
    )  # fmt: skip

    def told(path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{prometheus_port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
            return json.loads(reply.read())["data"]

    def query(expression: str) -> float | None:
        try:
            found = told("query", query=expression)["result"]
        except OSError:  # Prometheus is still starting
            return None
        return float(found[0]["value"][1]) if found else None

    def health() -> dict[str, str]:
        return {rule["name"]: rule["health"] for group in told("rules")["groups"] for rule in group["rules"]}

    wait_until(
        lambda: query('assay_items_total{kind="simulated", status="ok"}') == 7, "Prometheus has scraped the items"
    )
    wait_until(lambda: query('up{job="assay"}') == 1, "the last scrape succeeded")
    assert query('assay_redis_up{role="state"}') == 1
    wait_until(
        lambda: query('assay_http_requests_total{route="/v1/jobs", status="2xx"}') == 20,
        "requests of both processes are counted together",
    )
    wait_until(lambda: "unknown" not in health().values(), "Prometheus has evaluated every rule")
    assert set(health().values()) == {"ok"}
    assert [expression for expression in dashboard_queries() if told("query", query=expression) is None] == []


def _answers(ask: Callable[[str], bytes]) -> bool:
    try:
        return ask("/health") == b"ok"
    except OSError:
        return False
