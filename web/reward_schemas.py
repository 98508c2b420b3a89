"""What goes over the wire between trainers and named rewards, besides what they send (`web/samples.py`)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel

from web.schemas import ItemProblem, Wire


class RewardQuery(Wire):
    reward: str | None = Field(None, description="Which named reward; without it, the default.")
    token: str | None = Field(None, description="The token, for trainers that cannot set a header.")


class DetailQuery(RewardQuery):
    detail: Literal["true", "false"] = Field("false", description="Whether to answer with an object.")


class RewardView(Wire):
    name: str
    fill: float = Field(description="What a failed item gets where a trainer wants a number.")
    reference_field: str = Field(description="Field of a dataset's row that holds the reference; empty: a usual name.")
    spec: dict[str, JsonValue] = Field(description="The spec of a score job, as the file has it.")
    default: bool = Field(description="Whether it is meant where a request names none.")


class RewardList(Wire):
    rewards: list[RewardView]


class QueryRewards(Wire):
    rewards: list[float] = Field(description="One for each query; the reward's `fill` where it failed.")
    scores: list[float] = Field(description="The same.")
    extra_logs: dict[str, list[float]] = Field(
        description="Every part of the reward, 0 where an item has none; `valid` is 1 where the reward is one, else 0."
    )


class RewardDetail(Wire):
    score: float
    valid: bool = Field(description="Whether the score is one: else it is the reward's `fill`.")
    parts: dict[str, float | None] = Field(description="Always the same names; null where there is none.")
    error: ItemProblem | None


class SampleReward(RootModel[float | RewardDetail]):
    """The reward; with `detail=true`, the reward and its parts."""


class Verified(BaseModel):
    """All that was sent, and:"""

    model_config = ConfigDict(frozen=True, extra="allow")

    reward: float
    mask_sample: bool = Field(description="NeMo-Gym's word for a reward that is none: the opposite of `valid`.")
    failure_kind: str | None = Field(None, description="`assay:` and the type of the error.")
    failure_reason: str | None = None
    reward_detail: RewardDetail
