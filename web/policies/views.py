"""The Pi0 reward-server protocol, `POST /score` and `GET /pool_status`, implemented with score jobs."""

import json
from typing import Any

from flask import Blueprint, Response, request
from pydantic import JsonValue, ValidationError

from config.settings import DEVELOPMENT_POLICY_NOTE, LOOPBACK
from tasks.episodes.policy_servers import PolicyServer, pool_status
from tasks.jobs.model import JobRequest
from tasks.scoring.model import ScoreSpec
from web.http import errors
from web.http.json_bodies import read_json, require_finite
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.http.validation import invalid_request, read_query
from web.policies.requests import ScoreRequest
from web.policies.schemas import PolicyScores, PoolStatus, TokenQuery
from web.rewards import reward_jobs
from web.rewards.named_rewards import KIND
from web.services import services

blueprint = Blueprint("policies", __name__)


@blueprint.post("/score")
@described(
    "Score instructions by running a policy with each, as the Pi0 reward server does; or by a different reward.",
    {200: PolicyScores},
    query=TokenQuery,
    errors=(400, 408, 413, 415, 429),
    body=ScoreRequest,
)
def score() -> Response:
    read_query(TokenQuery)
    body, size = read_json(ScoreRequest)
    require_finite(body.model_dump())
    spec = body.spec(services().settings, services().rewards)
    score_spec = _parse_spec(spec)
    items = body.items(score_spec)
    options, answer_s = body.options, services().settings.score_wait_s
    job = JobRequest(
        kind=KIND,
        spec=spec,
        items=items,
        priority="interactive",
        on_error=options.on_error,
        cache=options.cache,
        deadline_s=max(answer_s, 1.0),
        metadata={"path": request.path},
    )
    job_id, rows = reward_jobs.run_job(job, size, "responses[{}]", answer_s)
    settings = services().settings
    is_development = score_spec.policy is not None and settings.uses_development_policy
    return json_response(
        {
            "done_result": [row["score"] for row in rows],
            "valid": [row["valid"] for row in rows],
            "errors": [row["error"] for row in rows],
            "job": job_id,
            "notes": [DEVELOPMENT_POLICY_NOTE] if is_development else [],
        }
    )


def _parse_spec(spec: dict[str, JsonValue]) -> ScoreSpec:
    try:
        return ScoreSpec.model_validate(spec)
    except ValidationError as error:
        raise invalid_request(error, "spec") from error


@blueprint.get("/pool_status")
@described(
    "List the policy servers, with the number of connected, busy and broken servers.",
    {200: PoolStatus},
    query=TokenQuery,
    errors=(400,),
)
def status() -> Response:
    read_query(TokenQuery)
    return json_response(pool_status(servers()))


def servers() -> list[PolicyServer]:
    """List each policy server once. For a server known to several processes, the owner's report wins."""
    found: dict[tuple[str, str], PolicyServer] = {}
    for worker in services().registry.workers():
        for server in worker.policies:
            place = (worker.node if server.host in LOOPBACK else "", server.url)
            if place not in found or found[place].elsewhere:
                found[place] = server
    return list(found.values())


@blueprint.errorhandler(Exception)
def _respond_with_error(error: Exception) -> Response:
    """Respond with a problem document plus `error`, the field that clients of this protocol read. They expect 400 for
    an invalid request, not 422."""
    response = errors.handle(error)
    if response.status_code == 422:
        response.status_code = 400
    problem: dict[str, Any] = json.loads(response.get_data())
    response.set_data(json.dumps(problem | {"error": problem["detail"], "status": response.status_code}))
    return response
