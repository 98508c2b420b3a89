"""Query and response models of the reward endpoints. `web/rewards/requests.py` has the request bodies."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel

from web.http.schemas import StrictModel
from web.jobs.schemas import ItemError


class RewardQuery(StrictModel):
    reward: str | None = Field(None, description="Name of the reward; the default reward if omitted.")
    token: str | None = Field(None, description="The bearer token, for trainers that cannot set a header.")


class DetailQuery(RewardQuery):
    detail: Literal["true", "false"] = Field("false", description="Whether the response is an object.")


class RewardView(StrictModel):
    name: str
    fill: float = Field(description="Value of a failed item where a trainer needs a number.")
    reference_field: str = Field(
        description="Field of a dataset's row with the reference; empty: the usual names are tried."
    )
    spec: dict[str, JsonValue] = Field(description="Spec of the score job, unchanged from the file.")
    default: bool = Field(description="Whether a request without a name uses this reward.")


class RewardList(StrictModel):
    rewards: list[RewardView]


class QueryRewards(StrictModel):
    rewards: list[float] = Field(description="Reward of each query; the reward's `fill` where it failed.")
    scores: list[float] = Field(description="Copy of `rewards`.")
    extra_logs: dict[str, list[float]] = Field(
        description="Every part of the reward, 0 where an item lacks it; `valid` is 1 for a valid reward, else 0."
    )


class RewardDetail(StrictModel):
    score: float
    valid: bool = Field(description="Whether the score is valid; otherwise it is the reward's `fill`.")
    parts: dict[str, float | None] = Field(
        description="Parts by name, with the same names in every response; null for a missing part."
    )
    error: ItemError | None


class SampleReward(RootModel[float | RewardDetail]):
    """The reward; with `detail=true`, the reward and its parts."""


class VerifyResult(BaseModel):
    """Every field of the request, and the fields below."""

    model_config = ConfigDict(frozen=True, extra="allow")

    reward: float
    mask_sample: bool = Field(description="NeMo-Gym's mark of an invalid reward: the opposite of `valid`.")
    failure_kind: str | None = Field(None, description="`assay:` and the type of the error.")
    failure_reason: str | None = None
    reward_detail: RewardDetail
