"""What a score job may ask for. docs/scoring.md shows it in use."""

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
from tasks.scoring.measure import Measure
from tasks.scoring.messages import Chat, is_answered
from tasks.scoring.policy import PolicyOptions, PolicyScorer
from tasks.scoring.scorer import Options

Answer = StrictStr | StrictInt | StrictFloat
#: Base scores, and what parts are multiplied by, lie within this, so that whatever is made of them stays finite.
MOST = 1e9


class ScorerChoice(BaseModel):
    """One scorer of a job, with how much it counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True)

    name: str = Field(description="Which scorer.")
    label: str | None = Field(
        None,
        alias="as",
        pattern=r"^[A-Za-z0-9_.:-]{1,60}$",
        description="Its name among the parts; its own by default.",
    )
    weight: float = Field(1.0, description="How much it counts; a gate has none.")
    gate: bool = Field(False, description="Whether the item's score is 0 when this one does not hold.")
    threshold: float | None = Field(None, description="What a gate's score must reach; by default anything above 0.")
    options: dict[str, JsonValue] = Field(default_factory=dict, validate_default=True)

    @field_validator("name")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return registry.find(value).name

    @field_validator("options")
    @classmethod
    def _fit_the_scorer(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """The options with all defaults, so that what a job was asked for is written down with it."""
        if "name" not in info.data:
            return value
        # A ValidationError raised here keeps its path, which continues that of this field.
        options: Options = registry.find(info.data["name"]).options.model_validate(value)
        return options.model_dump(mode="json", by_alias=True)

    @model_validator(mode="after")
    def _is_gate_or_counts(self) -> Self:
        if self.threshold is not None and not self.gate:
            raise ValueError("`threshold` is for a gate: set `gate` too")
        if self.gate and "weight" in self.model_fields_set and self.weight != 1.0:
            raise ValueError("a gate has no weight")
        return self

    @property
    def part(self) -> str:
        return self.label or self.name

    def holds(self, score: float) -> bool:
        return score > 0 if self.threshold is None else score >= self.threshold


class RewardJudge(JudgeSpec):
    """A judge whose score is part of a reward: all that a judge job may ask for, and how much it counts."""

    reward_coefficient: float = Field(1.0, ge=-MOST, le=MOST, description="What the judge's score is multiplied by.")
    judge_zero_scores: bool = Field(False, description="Whether responses whose base score is 0 are judged too.")

    @model_validator(mode="after")
    def _judges_one_response(self) -> Self:
        if self.mode == "pairwise":
            raise ValueError("`mode`: pairwise compares two responses, and a reward is of one")
        return self


class PenaltyChoice(BaseModel):
    """One penalty of a job, with how much it counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(description="Which penalty.")
    scale: float = Field(1.0, ge=0, le=MOST, description="What it is multiplied by before it is taken off.")
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


#: Parts of a reward that are neither a scorer's nor a penalty's.
REWARD_PARTS = ("base", "judge", "response_length", "median_length", "group_mean", "group_std", "advantage")


class ScoreSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    scorers: tuple[ScorerChoice, ...] = Field((), max_length=50)
    combine: Literal["mean", "sum"] = Field("mean", description="How weighted scores become one.")
    judge: RewardJudge | None = Field(None, description="A judge whose score is added.")
    penalties: tuple[PenaltyChoice, ...] = Field((), max_length=20, description="What is taken off.")
    tokenizer: str = Field("", description="What lengths are counted with, where items do not bring `response_tokens`.")
    group_statistics: bool = Field(
        False, description="Whether parts have the mean and deviation of the group's rewards, and the advantage."
    )

    @field_validator("scorers")
    @classmethod
    def _can_be_told_apart(cls, value: tuple[ScorerChoice, ...]) -> tuple[ScorerChoice, ...]:
        parts = [choice.part for choice in value]
        if twice := sorted({part for part in parts if parts.count(part) > 1}):
            raise ValueError(f"two are called {twice[0]!r}: give one of them another name with `as`")
        return value

    @field_validator("penalties")
    @classmethod
    def _are_different(cls, value: tuple[PenaltyChoice, ...]) -> tuple[PenaltyChoice, ...]:
        names = [choice.name for choice in value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"{twice[0]!r} is there twice")
        return value

    @property
    def is_reward(self) -> bool:
        """More than scorers: a judge, penalties, or what a group adds."""
        return bool(self.judge or self.penalties or self.group_statistics or not self.scorers)

    @property
    def measures(self) -> tuple[ScorerChoice, ...]:
        """The scorers that ask a model on a device."""
        return tuple(choice for choice in self.scorers if isinstance(registry.find(choice.name), Measure))

    @property
    def policy(self) -> ScorerChoice | None:
        """The scorer that runs a robot policy."""
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
        """Whether something of it is known only when the whole group is."""
        return self.group_statistics or any(choice.penalty.grouped for choice in self.penalties)

    @property
    def needs_length(self) -> bool:
        return bool(self.tokenizer) or any(choice.penalty.needs_length for choice in self.penalties)

    @model_validator(mode="after")
    def _has_parts_of_its_own(self) -> Self:
        others = (*REWARD_PARTS, *(choice.name for choice in self.penalties)) if self.is_reward else ()
        if taken := [choice.part for choice in self.scorers if choice.part in others]:
            raise ValueError(
                f"`scorers`: a reward has a part {taken[0]!r} already: call the scorer otherwise with `as`"
            )
        return self

    @model_validator(mode="after")
    def _has_one_policy_beside_rules(self) -> Self:
        """The trials of an item are its group, and there is one grouped stage."""
        policies = [choice for choice in self.scorers if isinstance(registry.find(choice.name), PolicyScorer)]
        if len(policies) > 1:
            raise ValueError("`scorers`: a job runs one policy; send two jobs for two settings of it")
        if policies and (self.judge or self.measures or self.is_grouped):
            raise ValueError(
                "`scorers`: beside `policy` a job may have rules, and penalties of each response alone; "
                "no judge, no model scorers, nothing by group"
            )
        return self

    @model_validator(mode="after")
    def _can_be_combined(self) -> Self:
        weights = [choice.weight for choice in self.scorers if not choice.gate]
        if not self.scorers:
            if not (self.judge or self.penalties or self.group_statistics):
                raise ValueError("`scorers`: name one at least, or a `judge`, or `penalties`")
            return self
        if not weights:
            raise ValueError("`scorers`: one at least must not be a gate")
        if self.combine == "mean" and (min(weights) < 0 or not sum(weights)):
            raise ValueError("`scorers`: for a mean, weights must not be negative and not all 0; see `combine`")
        return self


class ScoreItem(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str | None = None
    group_id: str | None = None
    prompt: Chat | None = None
    response: Chat
    reference: Answer | Annotated[list[Answer], Field(max_length=1000)] | None = Field(
        None, description="The right answer, or a list of answers of which one is enough."
    )
    base_score: StrictInt | StrictFloat | None = Field(
        None, ge=-MOST, le=MOST, allow_inf_nan=False, description="A score of your own, where the job has no scorers."
    )
    response_tokens: StrictInt | None = Field(
        None, ge=0, le=MOST_TOKENS, description="The response's length in tokens, for penalties."
    )
    task: EpisodeTask | None = Field(None, description="For `policy`: which task the response is an instruction for.")
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("response")
    @classmethod
    def _is_answered(cls, value: Any) -> Any:
        if not is_answered(value):
            raise ValueError("must have a message whose role is assistant")
        return value

    @property
    def references(self) -> tuple[str, ...]:
        if self.reference is None:
            return ()
        return tuple(map(str, self.reference if isinstance(self.reference, list) else [self.reference]))

    @property
    def for_judge(self) -> JudgeItem:
        """The same as a judge is shown it: of several right answers, all."""
        return JudgeItem(
            prompt=self.prompt,
            response=self.response,
            reference=" or ".join(self.references) if self.references else None,
            metadata=self.metadata,
        )
