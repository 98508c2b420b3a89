"""What trainers call by themselves: `/get_reward` (OpenRLHF), `/rm` (slime), `/verify` (NeMo-Gym).

They want a number for every sample, whatever happened to it: a failed one gets the reward's `fill`, and is marked
invalid wherever the trainer has a place for that.
"""

from typing import Any

from flask import Blueprint, Response

from config.rewards import Reward
from web import reward_jobs
from web.answers import answer
from web.description import described, read_query
from web.json_bodies import read_json, require_finite
from web.reward_jobs import Row
from web.reward_schemas import DetailQuery, QueryRewards, RewardQuery, SampleReward, Verified
from web.rewards import VALID
from web.samples import QueryBatch, Sample, VerifyRequest
from web.services import services

blueprint = Blueprint("trainers", __name__)

#: Seconds after which there is an answer: OpenRLHF gives up after 180 s, slime after 120 s.
OPENRLHF_S = 170.0
SLIME_S = 110.0
NEMO_GYM_S = 170.0

_ERRORS = (400, 408, 413, 415, 422, 429)


@blueprint.post("/get_reward")
@described(
    "Reward samples as OpenRLHF sends them (`--reward.remote_url`).",
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
    rows = reward_jobs.rewarded(reward, items, size, "query[{}]", OPENRLHF_S) if items else []
    numbers = [_number(reward, row) for row in rows]
    # 0 where an item has nothing of a part: OpenRLHF's log takes numbers only, and the same names in every answer.
    logs = {name: [_part(row, name) or 0.0 for row in rows] for name in services().reward_parts[reward.name]}
    logs[VALID] = [float(row["valid"]) for row in rows]
    return answer({"rewards": numbers, "scores": numbers, "extra_logs": logs})


@blueprint.post("/rm")
@described(
    "Reward one sample as slime sends it (`--rm-url`): the answer is the number; with `detail`, an object.",
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
    (row,) = reward_jobs.rewarded(reward, [sample.item(reward)], size, "response", SLIME_S)
    return answer(_detail(reward, row) if query.detail == "true" else _number(reward, row))


@blueprint.post("/verify")
@described(
    "Reward a response as NeMo-Gym sends it: the answer is the body, with its `reward`.",
    {200: Verified},
    query=RewardQuery,
    errors=_ERRORS,
    body=VerifyRequest,
)
def verify() -> Response:
    reward = services().rewards.get(read_query(RewardQuery).reward)
    asked, size = read_json(VerifyRequest)
    given = asked.model_dump()
    require_finite(given)
    (row,) = reward_jobs.rewarded(reward, [asked.item(reward)], size, "response.output", NEMO_GYM_S)
    detail = _detail(reward, row)
    more = {"reward": detail["score"], "mask_sample": not row["valid"], "reward_detail": detail}
    if row["error"]:
        more |= {"failure_kind": f"assay:{row['error']['type']}", "failure_reason": row["error"]["message"]}
    return answer(given | more)


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
