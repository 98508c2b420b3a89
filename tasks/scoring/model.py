"""Request schema of score jobs: the validated spec and its items. docs/scoring.md shows it in use."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tasks.episodes.model import EpisodeTask
from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.scoring import penalties, registry
from tasks.scoring.lengths import MOST_TOKENS
from tasks.scoring.messages import Chat, ResponseChat
from tasks.scoring.model_scorer import ModelScorer
from tasks.scoring.policy import PolicyOptions, PolicyScorer
from tasks.scoring.scorer import Options

Answer = StrictStr | StrictInt | StrictFloat
#: Bound of base scores and of the factors of parts, so that every reward stays finite.
MAX_SCORE = 1e9


class ScorerChoice(BaseModel):
    """A scorer of a job: its name, its weight or gate, and its options."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True)

    name: str = Field(description="Name of the scorer.")
    label: str | None = Field(
        None,
        alias="as",
        pattern=r"^[A-Za-z0-9_.:-]{1,60}$",
        description="Name of its part in the result; default: the scorer's name.",
    )
    weight: float = Field(1.0, description="Weight in the combined score; a gate has no weight.")
    gate: bool = Field(False, description="Whether the item's score is 0 when this scorer does not pass.")
    threshold: float | None = Field(
        None, description="Score from which a gate passes; default: every score above 0 passes."
    )
    options: dict[str, JsonValue] = Field(default_factory=dict, validate_default=True)

    @field_validator("name")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return registry.find(value).name

    @field_validator("options")
    @classmethod
    def _fit_the_scorer(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Validate the options and add the defaults, so that the stored spec shows the options the job really uses."""
        if "name" not in info.data:
            return value
        # pydantic prefixes the path of a ValidationError raised here with the path of this field.
        options: Options = registry.find(info.data["name"]).options.model_validate(value)
        return options.model_dump(mode="json", by_alias=True)

    @model_validator(mode="after")
    def _is_gate_or_counts(self) -> Self:
        if self.threshold is not None and not self.gate:
            raise ValueError("`threshold` needs `gate`: set `gate` to true")
        if self.gate and "weight" in self.model_fields_set and self.weight != 1.0:
            raise ValueError("a gate has no weight: remove `weight`")
        return self

    @property
    def part(self) -> str:
        return self.label or self.name

    def passes(self, score: float) -> bool:
        return score > 0 if self.threshold is None else score >= self.threshold


class RewardJudge(JudgeSpec):
    """A judge whose score is part of a reward: the fields of a judge job's spec, plus the factor of its score."""

    reward_coefficient: float = Field(
        1.0, ge=-MAX_SCORE, le=MAX_SCORE, description="Factor of the judge's score in the reward."
    )
    judge_zero_scores: bool = Field(False, description="Whether responses with base score 0 are judged too.")

    @model_validator(mode="after")
    def _judges_one_response(self) -> Self:
        if self.mode == "pairwise":
            raise ValueError("`mode`: pairwise compares two responses, but a reward has one response: use another mode")
        return self


class PenaltyChoice(BaseModel):
    """A penalty of a job: its name, its scale and its options."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(description="Name of the penalty.")
    scale: float = Field(1.0, ge=0, le=MAX_SCORE, description="Factor of the penalty before it is subtracted.")
    options: dict[str, JsonValue] = Field(default_factory=dict, validate_default=True)

    @field_validator("name")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return penalties.find(value).name

    @field_validator("options")
    @classmethod
    def _fit_the_penalty(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if "name" not in info.data:
            return value
        return dict(penalties.find(info.data["name"]).options.model_validate(value).model_dump(mode="json"))

    @property
    def penalty(self) -> penalties.AnyPenalty:
        return penalties.find(self.name)


#: Parts of a reward apart from its scorers and penalties; scorers must not use their names.
REWARD_PARTS = ("base", "judge", "response_length", "median_length", "group_mean", "group_std", "advantage")


class ScoreSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    scorers: tuple[ScorerChoice, ...] = Field((), max_length=50)
    combine: Literal["mean", "sum"] = Field("mean", description="Combination of the weighted scores: mean or sum.")
    judge: RewardJudge | None = Field(None, description="Judge; its score is added to the base score.")
    penalties: tuple[PenaltyChoice, ...] = Field(
        (), max_length=20, description="Penalties that are subtracted from the reward."
    )
    tokenizer: str = Field("", description="Tokenizer that counts the length of items without `response_tokens`.")
    group_statistics: bool = Field(
        False, description="Whether parts include mean and deviation of the group's rewards, and the advantage."
    )

    @field_validator("scorers")
    @classmethod
    def _can_be_told_apart(cls, value: tuple[ScorerChoice, ...]) -> tuple[ScorerChoice, ...]:
        parts = [choice.part for choice in value]
        if twice := sorted({part for part in parts if parts.count(part) > 1}):
            raise ValueError(f"two scorers are called {twice[0]!r}: rename one of them with `as`")
        return value

    @field_validator("penalties")
    @classmethod
    def _are_different(cls, value: tuple[PenaltyChoice, ...]) -> tuple[PenaltyChoice, ...]:
        names = [choice.name for choice in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]!r} is listed twice: list each penalty once")
        return value

    @property
    def is_reward(self) -> bool:
        """Whether the score has more parts than its scorers: a judge, penalties or group statistics."""
        return bool(self.judge or self.penalties or self.group_statistics or not self.scorers)

    @property
    def model_scorers(self) -> tuple[ScorerChoice, ...]:
        """The scorers that run a model on a device."""
        return tuple(choice for choice in self.scorers if isinstance(registry.find(choice.name), ModelScorer))

    @property
    def policy(self) -> ScorerChoice | None:
        """The scorer that runs a robot policy, if the spec has one."""
        return next((choice for choice in self.scorers if isinstance(registry.find(choice.name), PolicyScorer)), None)

    @property
    def trials(self) -> int:
        return self.policy_options.trials if self.policy else 1

    @property
    def policy_options(self) -> PolicyOptions:
        assert self.policy is not None, "only a spec with a policy has options for it"
        return PolicyOptions.model_validate(self.policy.options)

    @property
    def is_grouped(self) -> bool:
        """Whether a part of the reward depends on the complete group."""
        return self.group_statistics or any(choice.penalty.grouped for choice in self.penalties)

    @property
    def needs_length(self) -> bool:
        return bool(self.tokenizer) or any(choice.penalty.needs_length for choice in self.penalties)

    @model_validator(mode="after")
    def _has_parts_of_its_own(self) -> Self:
        others = (*REWARD_PARTS, *(choice.name for choice in self.penalties)) if self.is_reward else ()
        if taken := [choice.part for choice in self.scorers if choice.part in others]:
            raise ValueError(f"`scorers`: a reward already has a part {taken[0]!r}: rename the scorer with `as`")
        return self

    @model_validator(mode="after")
    def _has_one_policy_beside_rules(self) -> Self:
        """Refuse a policy together with group parts: its trials already use the item's group in the grouped stage."""
        policies = [choice for choice in self.scorers if isinstance(registry.find(choice.name), PolicyScorer)]
        if len(policies) > 1:
            raise ValueError("`scorers`: a job runs at most one policy: send a job per policy setting")
        if policies and (self.judge or self.model_scorers or self.is_grouped):
            raise ValueError(
                "`scorers`: a job with `policy` may also have rules and penalties per response; "
                "remove the judge, the model scorers, group penalties and group statistics"
            )
        return self

    @model_validator(mode="after")
    def _can_be_combined(self) -> Self:
        weights = [choice.weight for choice in self.scorers if not choice.gate]
        if not self.scorers:
            if not (self.judge or self.penalties or self.group_statistics):
                raise ValueError("`scorers` is empty: name at least one scorer, or a `judge`, or `penalties`")
            return self
        if not weights:
            raise ValueError("`scorers` has only gates: add a scorer without `gate`")
        if self.combine == "mean" and (min(weights) < 0 or not sum(weights)):
            raise ValueError(
                "`scorers`: for a mean, weights must not be negative and their sum must be above 0; or set "
                '`combine` to "sum"'
            )
        return self


class ScoreItem(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = None
    group_id: str | None = None
    prompt: Chat | None = None
    response: ResponseChat
    reference: Answer | Annotated[list[Answer], Field(max_length=1000)] | None = Field(
        None, description="The correct answer, or a list of accepted answers."
    )
    base_score: StrictInt | StrictFloat | None = Field(
        None,
        ge=-MAX_SCORE,
        le=MAX_SCORE,
        allow_inf_nan=False,
        description="A score of your own, where the job has no scorers.",
    )
    response_tokens: StrictInt | None = Field(
        None, ge=0, le=MOST_TOKENS, description="The response's length in tokens, for penalties."
    )
    task: EpisodeTask | None = Field(None, description="For `policy`: the task that the response instructs.")
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def references(self) -> tuple[str, ...]:
        if self.reference is None:
            return ()
        return tuple(map(str, self.reference if isinstance(self.reference, list) else [self.reference]))

    @property
    def for_judge(self) -> JudgeItem:
        """Convert to an item of a judge job; several references are joined with "or"."""
        return JudgeItem(
            prompt=self.prompt,
            response=self.response,
            reference=" or ".join(self.references) if self.references else None,
            metadata=self.metadata,
        )
