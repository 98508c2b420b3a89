"""What an inference job may ask for. docs/inference.md shows it in use.

An item is a row of a contexts file: a question, what was found for it, and whatever else the row holds, which is passed
through. How a row becomes a prompt is in `prompts.py`, how it becomes a row of the output in `rows.py`.
"""

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from tasks.scoring.messages import Chat

#: Backends of ours. Others come from installed packages.
DEVICE_BACKENDS = ("local", "huggingface")
API_BACKENDS = ("openai", "togetherai", "vllm")

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Sampling(BaseModel):
    """How an answer is drawn."""

    model_config = _STRICT

    temperature: float = Field(0.0, ge=0, le=10, description="0: the likeliest token each time.")
    top_p: float = Field(1.0, gt=0, le=1, description="Draw among the likeliest tokens that make up this much.")
    top_k: int = Field(0, ge=0, le=100_000, description="Draw among this many; 0: all.")
    max_new_tokens: int = Field(512, ge=1, le=131_072, description="Tokens of an answer at most.")
    stop: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        (), max_length=16, description="Texts that end an answer; they are not part of it."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="The same row, seed and sample give the same answer.")
    n: int = Field(1, ge=1, le=64, description="Answers to each row.")

    @model_validator(mode="after")
    def _draws_if_several(self) -> Self:
        if self.n > 1 and self.temperature == 0:
            raise ValueError("`n`: at temperature 0 all answers would be the same one")
        return self


class InferenceSpec(BaseModel):
    model_config = _STRICT

    backend: str = Field(
        "local",
        pattern=r"^[a-z][a-z0-9_]{0,40}$",
        description="`local`, `huggingface`, `openai`, `togetherai`, `vllm`, or one of an installed package.",
    )
    task: Literal["generate", "embed"] = Field(
        "generate", description="`embed`: a vector for each `query`, by an embedding model on a device."
    )
    model: str = Field(
        "",
        max_length=500,
        description="A model of the server's settings, a hub id (`owner/name@revision`), or one of the API's models; "
        "empty: `smollm2` (`minilm` for `embed`) or the only one there is, and of an API the first.",
    )
    profile: str = Field("", description="For an API: which profile; by default the one named like the backend.")
    system: str = Field("", max_length=100_000, description="What stands before every question.")
    template: str = Field(
        "",
        max_length=100_000,
        description="Jinja, with the fields of a row; by default the context, then the question.",
    )
    chat: Literal["auto", "never"] = Field(
        "auto", description="`auto`: through the model's chat template if it has one."
    )
    sampling: Sampling = Field(default_factory=Sampling)
    logprobs: bool = Field(False, description="Whether the log-probability of each token of an answer is kept.")
    limit: Annotated[int, Field(ge=1)] | None = Field(None, description="Rows of the job at most, the first ones.")
    max_samples_per_worker: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Rows at most for each device slot there is at submit: the first ones, of all together."
    )
    timeout_s: float = Field(600.0, gt=0, le=86_400, description="Seconds one answer may take.")
    max_retries: int = Field(3, ge=0, le=20, description="Further tries of a call of an API that failed.")

    @model_validator(mode="after")
    def _embeds_on_a_device(self) -> Self:
        if self.task == "embed" and self.backend not in DEVICE_BACKENDS:
            raise ValueError(f"`task`: embed runs on a device: `backend` must be {' or '.join(DEVICE_BACKENDS)}")
        return self

    @property
    def asks_an_api(self) -> bool:
        return self.backend in API_BACKENDS


class InferenceItem(BaseModel):
    """One row. Fields that are not named here are passed through."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    id: StrictStr | StrictInt | None = None
    group_id: StrictStr | None = None
    original_item_id: StrictStr | StrictInt | None = None
    query_index: StrictInt | StrictStr | None = None
    dedup_key: StrictStr | None = None
    query: StrictStr | None = Field(None, description="The question.")
    messages: Chat | None = Field(None, description="Instead of `query`: chat messages, sent as they are.")
    context: StrictStr | None = Field(None, description="What was found for it.")
    retrieval_method: StrictStr | None = None
    retrieval_time: Annotated[StrictInt | StrictFloat, Field(ge=0)] | None = None
    success: StrictBool | None = Field(None, description="False: no context could be made; the row is not run.")
    error: JsonValue = Field(None, description="Why `success` is false.")
    answered_as: dict[str, JsonValue] | None = Field(
        None, description="Written by the server: the row with the same `dedup_key` whose question this one shares."
    )

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self.success is not False and self.query is None and self.messages is None:
            raise ValueError("`query`: is missing, and there are no `messages` either")
        return self
