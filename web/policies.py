"""The Pi0 reward server's HTTP: `POST /score` and `GET /pool_status`, served by the job core."""

import json
from typing import Any

from flask import Blueprint, Response, request
from pydantic import JsonValue, ValidationError

from config.settings import DEVELOPMENT_POLICY_NOTE, LOOPBACK
from tasks.episodes.servers import PolicyServer, pool_status
from tasks.jobs.model import JobRequest
from tasks.scoring.model import ScoreSpec
from web import errors, reward_jobs
from web.answers import answer
from web.description import described, invalid, read_query
from web.json_bodies import read_json, require_finite
from web.policy_schemas import PolicyScores, PoolStatus, TokenQuery
from web.rewards import KIND
from web.score_requests import ScoreRequest
from web.services import services

blueprint = Blueprint("policies", __name__)


@blueprint.post("/score")
@described(
    "Score instructions by running a policy under them, as the Pi0 reward server does; or by another reward.",
    {200: PolicyScores},
    query=TokenQuery,
    errors=(400, 408, 413, 415, 429),
    body=ScoreRequest,
)
def score() -> Response:
    read_query(TokenQuery)
    asked, size = read_json(ScoreRequest)
    require_finite(asked.model_dump())
    spec = asked.spec(services().settings, services().rewards)
    understood = _understood(spec)
    items = asked.items(understood)
    kwargs, answer_s = asked.options, services().settings.score_wait_s
    job = JobRequest(
        kind=KIND, spec=spec, items=items, priority="interactive", on_error=kwargs.on_error, cache=kwargs.cache,
        deadline_s=max(answer_s, 1.0), metadata={"path": request.path},
    )  # fmt: skip
    job_id, rows = reward_jobs.outcomes(job, size, "responses[{}]", answer_s)
    settings = services().settings
    is_development = understood.policy is not None and settings.uses_development_policy
    return answer(
        {
            "done_result": [row["score"] for row in rows],
            "valid": [row["valid"] for row in rows],
            "errors": [row["error"] for row in rows],
            "job": job_id,
            "notes": [DEVELOPMENT_POLICY_NOTE] if is_development else [],
        }
    )


def _understood(spec: dict[str, JsonValue]) -> ScoreSpec:
    try:
        return ScoreSpec.model_validate(spec)
    except ValidationError as error:
        raise invalid(error, "spec") from error


@blueprint.get("/pool_status")
@described("The policy servers: which are connected, busy, broken.", {200: PoolStatus}, query=TokenQuery, errors=(400,))
def status() -> Response:
    read_query(TokenQuery)
    return answer(pool_status(servers()))


def servers() -> list[PolicyServer]:
    """Each once: one that another process owns is told of by that process."""
    found: dict[tuple[str, str], PolicyServer] = {}
    for worker in services().registry.workers():
        for server in worker.policies:
            place = (worker.node if server.host in LOOPBACK else "", server.url)
            if place not in found or found[place].elsewhere:
                found[place] = server
    return list(found.values())


@blueprint.errorhandler(Exception)
def _refuse(error: Exception) -> Response:
    """As problems everywhere, with the `error` that this server's clients look for; what is wrong with a request is
    400 to them."""
    response = errors.answer_to(error)
    if response.status_code == 422:
        response.status_code = 400
    body: dict[str, Any] = json.loads(response.get_data())
    response.set_data(json.dumps(body | {"error": body["detail"], "status": response.status_code}))
    return response
