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

from tasks.scoring import registry
from tasks.scoring.messages import Chat, is_answered
from tasks.scoring.scorer import Options

Answer = StrictStr | StrictInt | StrictFloat


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


class ScoreSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    scorers: tuple[ScorerChoice, ...] = Field(min_length=1, max_length=50)
    combine: Literal["mean", "sum"] = Field("mean", description="How weighted scores become one.")

    @field_validator("scorers")
    @classmethod
    def _can_be_told_apart(cls, value: tuple[ScorerChoice, ...]) -> tuple[ScorerChoice, ...]:
        parts = [choice.part for choice in value]
        if twice := sorted({part for part in parts if parts.count(part) > 1}):
            raise ValueError(f"two are called {twice[0]!r}: give one of them another name with `as`")
        return value

    @model_validator(mode="after")
    def _can_be_combined(self) -> Self:
        weights = [choice.weight for choice in self.scorers if not choice.gate]
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
