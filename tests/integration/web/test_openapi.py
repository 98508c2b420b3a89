"""The OpenAPI document: it describes what is there, and what is there keeps to it."""

import re
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from tasks.composition import create_core
from tests.integration.api import Api
from tests.support.fleet import Fleet
from web.http.openapi import document as openapi

CONFIG = {
    "seed": 1,
    # The generation of data may take long on a busy machine.
    "suppress-health-check": ["too_slow"],
    # It would guess which answers lead to which requests, from names alike by chance, and take as long as all else.
    "phases": {"stateful": {"enabled": False}},
    # Whether a kind, a spec or an item is known, no schema says: data that is right for it may be refused.
    "checks": {"positive_data_acceptance": {"enabled": False}},
}


@pytest.fixture
def document(api: Api) -> dict[str, Any]:
    written: dict[str, Any] = api.client.get("/openapi.json").json
    return written


def test_every_route_is_described_and_nothing_else(api: Api, document: dict[str, Any]) -> None:
    routes = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in api.app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if rule.endpoint.partition(".")[0] not in openapi.UNLISTED
    }
    assert {(path, method) for path, operations in document["paths"].items() for method in operations} == routes


def test_the_document_is_openapi_3_1_with_bearer_tokens_and_problems(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    submit = document["paths"]["/v1/jobs"]["post"]
    assert set(submit["requestBody"]["content"]) == {"application/json", "application/x-ndjson", "multipart/form-data"}
    assert {each["name"] for each in submit["parameters"]} >= {"wait", "kind", "spec", "Idempotency-Key"}
    for operations in document["paths"].values():
        for operation in operations.values():
            problems = {status: each for status, each in operation["responses"].items() if status >= "400"}
            assert all(
                set(each["content"]) <= {"application/problem+json", "application/json"} for each in problems.values()
            )
            assert operation.get("security") == [] or {"401", "503"} <= set(problems)


@pytest.mark.parametrize("examples", [5, pytest.param(25, marks=(pytest.mark.slow, pytest.mark.timeout(600)))])
def test_whatever_comes_the_answer_keeps_to_the_document(fleet: Fleet, tmp_path: Path, examples: int) -> None:
    """schemathesis: right and wrong data for every operation, the same at every run."""
    # Nothing works here: whoever waits, waits in vain. All pools are there, so that /ready has no reason for its 503.
    (tmp_path / "rewards.toml").write_text('[rewards.a.spec]\nscorers = [{name = "numeric_match"}]\n')
    update = {
        "max_wait_s": 0.01,
        "score_wait_s": 0.01,
        "heartbeat_ttl_s": 600,
        "rewards_file": tmp_path / "rewards.toml",
    }
    fleet.settings = fleet.settings.model_copy(update=update)
    fleet.core = create_core(fleet.settings, fleet.celery)
    for pool in ("device", "api", "cpu"):
        fleet.hire(pool)  # type: ignore[arg-type]
    generation = {"max-examples": examples, "deterministic": True, "database": "none"}
    config = SchemathesisConfig.from_dict(CONFIG | {"generation": generation})
    schema = schemathesis.openapi.from_wsgi("/openapi.json", Api(fleet).app, config=config)
    checked, broken = 0, []
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            for results in event.recorder.checks.values():
                checked += len(results)
                broken += [
                    f"{event.label}: {each.failure_info.failure}\n{each.failure_info.code_sample}"
                    for each in results
                    if each.failure_info
                ]
        assert not isinstance(event, events.NonFatalError | events.FatalError), event
    assert not broken, "\n\n".join(broken[:5])
    assert checked > 2000
