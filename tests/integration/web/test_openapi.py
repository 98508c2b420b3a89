"""OpenAPI document: describes every route, and every answer conforms to it."""

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
    # It would guess links between answers and requests from similar names, and double the duration of the test.
    "phases": {"stateful": {"enabled": False}},
    # No schema lists the known kinds, specs and items, so the server may refuse data that conforms to the schema.
    "checks": {"positive_data_acceptance": {"enabled": False}},
}


@pytest.fixture
def document(api: Api) -> dict[str, Any]:
    written: dict[str, Any] = api.client.get("/openapi.json").json
    return written


def test_exactly_the_existing_routes_are_described(api: Api, document: dict[str, Any]) -> None:
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
def test_the_answer_to_any_request_conforms_to_the_document(fleet: Fleet, tmp_path: Path, examples: int) -> None:
    """schemathesis generates valid and invalid data for every operation, the same data in every run."""
    # No worker runs, so a wait would only take time. Every pool is registered, so that /ready does not answer 503.
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
