"""Reward endpoints in the protocols of trainers: `/get_reward` (OpenRLHF), `/rm` (slime), `/verify` (NeMo-Gym).

A trainer expects a number for every sample. A failed sample gets the reward's `fill`, and is marked invalid if the
trainer's protocol has a field for it.
"""

from typing import Any

from flask import Blueprint, Response

from config.rewards import Reward
from web.http.json_bodies import read_json, require_finite
from web.http.json_responses import json_response
from web.http.openapi.describe import described
from web.http.validation import read_query
from web.rewards import reward_jobs
from web.rewards.named_rewards import VALID
from web.rewards.requests import QueryBatch, Sample, VerifyRequest
from web.rewards.reward_jobs import Row
from web.rewards.schemas import DetailQuery, QueryRewards, RewardQuery, SampleReward, VerifyResult
from web.services import services

blueprint = Blueprint("trainers", __name__)

#: Seconds until the response: OpenRLHF times out after 180 s, slime after 120 s.
OPENRLHF_S = 170.0
SLIME_S = 110.0
NEMO_GYM_S = 170.0

_ERRORS = (400, 408, 413, 415, 422, 429)


@blueprint.post("/get_reward")
@described(
    "Reward samples in the format of OpenRLHF (`--reward.remote_url`).",
    {200: QueryRewards},
    query=RewardQuery,
    errors=_ERRORS,
    body=QueryBatch,
)
def get_reward() -> Response:
    reward = services().rewards.get(read_query(RewardQuery).reward)
    batch, size = read_json(QueryBatch)
    require_finite({"labels": batch.labels})
    items = batch.items(reward)
    rows = reward_jobs.score_items(reward, items, size, "query[{}]", OPENRLHF_S) if items else []
    numbers = [_number(reward, row) for row in rows]
    # 0 where an item lacks a part: OpenRLHF's log needs numbers, and the same names in every response.
    logs = {name: [_part(row, name) or 0.0 for row in rows] for name in services().reward_parts[reward.name]}
    logs[VALID] = [float(row["valid"]) for row in rows]
    return json_response({"rewards": numbers, "scores": numbers, "extra_logs": logs})


@blueprint.post("/rm")
@described(
    "Reward a sample in the format of slime (`--rm-url`): the response is a number; with `detail`, an object.",
    {200: SampleReward},
    query=DetailQuery,
    errors=_ERRORS,
    body=Sample,
)
def rm() -> Response:
    query = read_query(DetailQuery)
    reward = services().rewards.get(query.reward)
    sample, size = read_json(Sample)
    require_finite(sample.model_dump())
    (row,) = reward_jobs.score_items(reward, [sample.item(reward)], size, "response", SLIME_S)
    return json_response(_detail(reward, row) if query.detail == "true" else _number(reward, row))


@blueprint.post("/verify")
@described(
    "Reward a response in the format of NeMo-Gym: the response is the body, with its `reward`.",
    {200: VerifyResult},
    query=RewardQuery,
    errors=_ERRORS,
    body=VerifyRequest,
)
def verify() -> Response:
    reward = services().rewards.get(read_query(RewardQuery).reward)
    body, size = read_json(VerifyRequest)
    given = body.model_dump()
    require_finite(given)
    (row,) = reward_jobs.score_items(reward, [body.item(reward)], size, "response.output", NEMO_GYM_S)
    detail = _detail(reward, row)
    more = {"reward": detail["score"], "mask_sample": not row["valid"], "reward_detail": detail}
    if row["error"]:
        more |= {"failure_kind": f"assay:{row['error']['type']}", "failure_reason": row["error"]["message"]}
    return json_response(given | more)


def _number(reward: Reward, row: Row) -> float:
    return float(row["score"]) if row["valid"] and row["score"] is not None else reward.fill


def _part(row: Row, name: str) -> float | None:
    value: float | None = (row["parts"] or {}).get(name)
    return value


def _detail(reward: Reward, row: Row) -> dict[str, Any]:
    return {
        "score": _number(reward, row),
        "valid": row["valid"],
        "parts": {name: _part(row, name) for name in services().reward_parts[reward.name]},
        "error": row["error"],
    }
