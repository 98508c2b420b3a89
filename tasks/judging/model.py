"""What a judge job may ask for. docs/judging.md shows it in use.

Not here: what every job has (`cache`, `on_error`, `priority`, deadlines), and whether a profile or a rubric exists.
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
from tasks.scoring.messages import Chat, is_answered

Mode = Literal["scale", "reference", "pass_fail", "pairwise"]
DEFAULT_RUBRICS: dict[Mode, str] = {
    "scale": "helpfulness",
    "reference": "correctness",
    "pass_fail": "correctness",
    "pairwise": "preference",
}
#: What may be sent along with the messages; the rest of a request is Assay's.
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "seed", "stop", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "reasoning_effort", "chat_template_kwargs",
)  # fmt: skip
_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
Number = StrictInt | StrictFloat


class Member(BaseModel):
    """One judge of a panel."""

    model_config = _STRICT

    profile: str = Field(min_length=1, description="Name of an endpoint in the server's settings.")
    weight: float = Field(1.0, gt=0, description="How much its verdict counts.")
    model: str = Field("", description="Which of the endpoint's models; empty: the spec's `model`.")

    @property
    def name(self) -> str:
        return f"{self.profile}/{self.model}" if self.model else self.profile


class JudgeSpec(BaseModel):
    model_config = _STRICT

    profile: Annotated[str, Field(min_length=1)] | Annotated[tuple[Member, ...], Field(min_length=1, max_length=20)] = (
        Field(description="The endpoint that judges, or several with weights.")
    )
    model: str = Field("", description="Which of the endpoint's models; empty: its first.")
    mode: Mode = Field("scale", description="What the judge is asked.")
    rubric: str = Field(
        "",
        pattern=r"^([a-z0-9_-]{1,60}(@[A-Za-z0-9._-]{1,30})?)?$",
        validate_default=True,
        description="What is judged by: `name`, or `name@version`; by default one that fits the mode.",
    )
    scale: tuple[Number, Number] = Field((1, 10), description="Lowest and highest score of `scale` and `reference`.")
    samples: int = Field(1, ge=1, le=100, description="Verdicts of each profile, and order, of which the mean counts.")
    sampling: dict[str, JsonValue] = Field(
        default_factory=dict,
        validate_default=True,
        description="`temperature`, `top_p`, `max_tokens`, `seed`, ...; null leaves one to the endpoint.",
    )
    timeout_s: float = Field(60.0, gt=0, le=3600, description="Seconds one try of a call may take.")
    max_retries: int = Field(3, ge=0, le=20, description="Further tries of a call that failed.")
    re_asks: int = Field(2, ge=0, le=10, description="How often a judge is asked again that gave no verdict.")
    use_schema: Literal["auto", "never"] = Field(
        "auto", description="`auto`: a JSON schema where the endpoint can do that."
    )
    logprobs: bool = Field(False, description="Whether verdicts are weighted by their tokens' probabilities.")
    normalize: bool = Field(False, description="Whether scores are brought to 0..1.")
    budget: Annotated[float, Field(gt=0)] | None = Field(None, description="What the job's calls may cost in all.")
    concurrency: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Calls of the job in flight at most, below the profile's own limit."
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
        """With all defaults, so that what a job was asked for is written down with it."""
        for name in value:
            if name == "n":
                raise ValueError("`n` is not for judges: set `samples` beside `sampling`")
            if name not in SAMPLING:
                raise ValueError(f"has no {name!r}; it may have {', '.join(SAMPLING)}")
        seed = value.get("seed")
        if seed is not None and type(seed) is not int:
            raise ValueError("`seed` must be a whole number: each sample adds its index to it")
        # Several samples at temperature 0 would be one sample, several times paid.
        temperature = 0.0 if info.data.get("samples", 1) == 1 else 1.0
        limit = {} if "max_completion_tokens" in value else {"max_tokens": 1024}
        return {"temperature": temperature} | limit | value

    @model_validator(mode="after")
    def _has_different_judges(self) -> Self:
        names = [member.name for member in self.panel]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"`profile`: {twice[0]!r} is there twice: give it one weight, or `samples`")
        return self

    @property
    def panel(self) -> tuple[Member, ...]:
        """Who judges, each with the model that it is asked with."""
        if isinstance(self.profile, str):
            return (Member(profile=self.profile, model=self.model),)
        return tuple(member.model_copy(update={"model": member.model or self.model}) for member in self.profile)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the most a score may be, before it is normalised."""
        return self.scale if self.mode in ("scale", "reference") else (0, 1)

    def sampling_of(self, sample: int) -> dict[str, JsonValue]:
        """What is sent for one of the samples: with one and the same random seed they would all be equal."""
        sent: dict[str, JsonValue] = {name: value for name, value in self.sampling.items() if value is not None}
        if isinstance(seed := sent.get("seed"), int):
            sent["seed"] = seed + sample
        return sent


class JudgeItem(BaseModel):
    model_config = _STRICT

    id: str | None = None
    group_id: str | None = None
    prompt: Chat | None = Field(None, description="What was asked.")
    response: Chat = Field(description="What is judged.")
    rival: Chat | None = Field(None, description="For `pairwise`: the response it is compared with.")
    reference: Chat | None = Field(None, description="A right answer.")
    label: StrictBool | StrictInt | StrictFloat | StrictStr | None = Field(
        None, description="What a person said of it, for calibration."
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("response", "rival")
    @classmethod
    def _is_answered(cls, value: Any) -> Any:
        if value is not None and not is_answered(value):
            raise ValueError("must have a message whose role is assistant")
        return value


def require_fitting(spec: JudgeSpec, item: JudgeItem) -> None:
    """Raises CannotJudge for an item that lacks what the mode needs: that item's outcome, not the job's."""
    if spec.mode == "reference" and item.reference is None:
        raise CannotJudge("reference_missing", "Mode `reference` compares with a reference: give the item one.")
    if spec.mode == "pairwise" and item.rival is None:
        raise CannotJudge("rival_missing", "Mode `pairwise` compares two responses: give the item a `rival`.")


def label_score(spec: JudgeSpec, label: bool | int | float | str | None) -> float | None:
    """A person's label on the scale of the judge's scores; None when it has no place there."""
    words = {"pass": 1.0, "fail": 0.0} if spec.mode == "pass_fail" else {}
    if spec.mode == "pairwise":
        words = {"response": 1.0, "rival": 0.0, "tie": 0.5}
    if isinstance(label, str):
        return words.get(label.strip().lower())
    if label is None or (isinstance(label, bool) and spec.mode in ("scale", "reference")):
        return None
    low, high = spec.range
    return float(label) if math.isfinite(label) and low <= label <= high else None
