"""Request schema of judge jobs: the validated spec and its items. docs/judging.md shows it in use.

Not covered: fields common to every job (`cache`, `on_error`, `priority`, deadlines), and the check that a profile or
a rubric exists.
"""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tasks.errors import CannotJudge
from tasks.scoring.messages import Chat, ResponseChat

Mode = Literal["scale", "reference", "pass_fail", "pairwise"]
DEFAULT_RUBRICS: dict[Mode, str] = {
    "scale": "helpfulness",
    "reference": "correctness",
    "pass_fail": "correctness",
    "pairwise": "preference",
}
#: Sampling fields of an API request that a spec may set; Assay sets the rest of the request itself.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "reasoning_effort",
    "chat_template_kwargs",
)
_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
Number = StrictInt | StrictFloat


class Member(BaseModel):
    """A judge of a panel: an API profile, a model of it and a weight."""

    model_config = _STRICT

    profile: str = Field(min_length=1, description="Name of an API profile in the server's settings.")
    weight: float = Field(1.0, gt=0, description="Weight of this judge in the panel's mean.")
    model: str = Field("", description="Model of this endpoint; empty: the spec's `model`.")

    @property
    def name(self) -> str:
        return f"{self.profile}/{self.model}" if self.model else self.profile


class JudgeSpec(BaseModel):
    model_config = _STRICT

    profile: Annotated[str, Field(min_length=1)] | Annotated[tuple[Member, ...], Field(min_length=1, max_length=20)] = (
        Field(description="API profile of the judge, or a list of profiles with weights.")
    )
    model: str = Field("", description="Model of the endpoint; empty: the first model of the profile.")
    mode: Mode = Field("scale", description="Kind of verdict that the judge gives.")
    rubric: str = Field(
        "",
        pattern=r"^([a-z0-9_-]{1,60}(@[A-Za-z0-9._-]{1,30})?)?$",
        validate_default=True,
        description="Rubric of the judge: `name`, or `name@version`; the default depends on the mode.",
    )
    scale: tuple[Number, Number] = Field((1, 10), description="Lowest and highest score of `scale` and `reference`.")
    samples: int = Field(
        1, ge=1, le=100, description="Verdicts requested per profile and order; their mean is the score."
    )
    sampling: dict[str, JsonValue] = Field(
        default_factory=dict,
        validate_default=True,
        description="`temperature`, `top_p`, `max_tokens`, `seed`, ...; null leaves a field to the endpoint's default.",
    )
    timeout_s: float = Field(60.0, gt=0, le=3600, description="Timeout of each try of a call, in seconds.")
    max_retries: int = Field(3, ge=0, le=20, description="Maximum retries of a failed call.")
    re_asks: int = Field(2, ge=0, le=10, description="Maximum new requests to a judge after replies without a verdict.")
    use_schema: Literal["auto", "never"] = Field(
        "auto", description="`auto`: send a JSON schema for the reply where the endpoint supports schemas."
    )
    logprobs: bool = Field(False, description="Whether verdicts are weighted by their tokens' probabilities.")
    normalize: bool = Field(False, description="Whether scores are rescaled to 0..1.")
    budget: Annotated[float, Field(gt=0)] | None = Field(None, description="Maximum total cost of the job's calls.")
    concurrency: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Maximum calls of the job in flight; the profile's own limit applies as well."
    )

    @field_validator("rubric")
    @classmethod
    def _has_a_default(cls, value: str, info: ValidationInfo) -> str:
        return value or DEFAULT_RUBRICS.get(info.data.get("mode", "scale"), "")

    @field_validator("scale")
    @classmethod
    def _goes_up(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[0] >= value[1]:
            raise ValueError("must be the lowest and the highest score, in this order, such as [1, 10]")
        return value

    @field_validator("sampling")
    @classmethod
    def _is_sampling(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Add the default values, so that the stored spec shows the sampling that the job really uses."""
        for name in value:
            if name == "n":
                raise ValueError("`n` is not supported for judges: set `samples` beside `sampling`")
            if name not in SAMPLING:
                raise ValueError(f"has no field {name!r}: use {', '.join(SAMPLING)}")
        seed = value.get("seed")
        if seed is not None and type(seed) is not int:
            raise ValueError("`seed` must be a whole number: each sample adds its index to it")
        # Several samples at temperature 0 would be equal: the same verdict, paid for several times.
        temperature = 0.0 if info.data.get("samples", 1) == 1 else 1.0
        limit = {} if "max_completion_tokens" in value else {"max_tokens": 1024}
        return {"temperature": temperature} | limit | value

    @model_validator(mode="after")
    def _has_different_judges(self) -> Self:
        names = [member.name for member in self.panel]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"`profile` lists {twice[0]!r} twice: list it once with a higher weight, or set `samples`")
        return self

    @property
    def panel(self) -> tuple[Member, ...]:
        """The judges of this spec, each with the model that its calls name."""
        if isinstance(self.profile, str):
            return (Member(profile=self.profile, model=self.model),)
        return tuple(member.model_copy(update={"model": member.model or self.model}) for member in self.profile)

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest possible score, before normalization."""
        return self.scale if self.mode in ("scale", "reference") else (0, 1)

    def sampling_for(self, sample: int) -> dict[str, JsonValue]:
        """Return the sampling fields of a sample's request; its index is added to the seed, so that samples differ."""
        sent: dict[str, JsonValue] = {name: value for name, value in self.sampling.items() if value is not None}
        if isinstance(seed := sent.get("seed"), int):
            sent["seed"] = seed + sample
        return sent


class JudgeItem(BaseModel):
    model_config = _STRICT

    id: str | None = None
    group_id: str | None = None
    prompt: Chat | None = Field(None, description="Prompt that the response answers.")
    response: ResponseChat = Field(description="Response to judge.")
    rival: ResponseChat | None = Field(None, description="For `pairwise`: the second response of the pair.")
    reference: Chat | None = Field(None, description="A correct answer.")
    label: StrictBool | StrictInt | StrictFloat | StrictStr | None = Field(
        None, description="A person's rating of the response, for calibration."
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


def require_mode_fields(spec: JudgeSpec, item: JudgeItem) -> None:
    """Raise CannotJudge for an item without a field that the mode needs: the item fails, the job continues."""
    if spec.mode == "reference" and item.reference is None:
        raise CannotJudge("reference_missing", "Mode `reference` compares with a reference: give the item `reference`.")
    if spec.mode == "pairwise" and item.rival is None:
        raise CannotJudge("rival_missing", "Mode `pairwise` compares two responses: give the item a `rival`.")


def label_score(spec: JudgeSpec, label: bool | int | float | str | None) -> float | None:
    """Convert a person's label to the scale of the judge's scores; None when the label does not fit that scale."""
    words = {"pass": 1.0, "fail": 0.0} if spec.mode == "pass_fail" else {}
    if spec.mode == "pairwise":
        words = {"response": 1.0, "rival": 0.0, "tie": 0.5}
    if isinstance(label, str):
        return words.get(label.strip().lower())
    if label is None or (isinstance(label, bool) and spec.mode in ("scale", "reference")):
        return None
    low, high = spec.range
    return float(label) if math.isfinite(label) and low <= label <= high else None
