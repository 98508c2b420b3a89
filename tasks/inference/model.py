"""Request schema of inference jobs: the validated spec and its items. docs/inference.md shows it in use.

An item is a row of a contexts file: a query, its retrieved context, and other fields, which are passed through to the
output. `prompts.py` renders a row to a prompt, `rows.py` builds the row of the output.
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

#: Built-in backends. Installed packages may add more.
DEVICE_BACKENDS = ("local", "huggingface")
API_BACKENDS = ("openai", "togetherai", "vllm")

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Sampling(BaseModel):
    """Sampling parameters of an answer."""

    model_config = _STRICT

    temperature: float = Field(0.0, ge=0, le=10, description="Sampling temperature; 0: greedy decoding.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Nucleus sampling: draw from the likeliest tokens with this total probability."
    )
    top_k: int = Field(0, ge=0, le=100_000, description="Draw from this many likeliest tokens; 0: no limit.")
    max_new_tokens: int = Field(512, ge=1, le=131_072, description="Maximum tokens of an answer.")
    stop: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        (), max_length=16, description="Texts that end an answer; the answer does not include them."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Random seed: equal row, seed and sample index, equal answer.")
    n: int = Field(1, ge=1, le=64, description="Number of answers per row.")

    @model_validator(mode="after")
    def _draws_if_several(self) -> Self:
        if self.n > 1 and self.temperature == 0:
            raise ValueError("`n`: the answers would be equal at temperature 0: raise `temperature`, or set `n` to 1")
        return self


class InferenceSpec(BaseModel):
    model_config = _STRICT

    backend: str = Field(
        "local",
        pattern=r"^[a-z][a-z0-9_]{0,40}$",
        description="`local`, `huggingface`, `openai`, `togetherai`, `vllm`, or a backend of an installed package.",
    )
    task: Literal["generate", "embed"] = Field(
        "generate", description="`embed`: a vector for each `query`, by an embedding model on a device."
    )
    model: str = Field(
        "",
        max_length=500,
        description="A model of the server's settings, a hub id (`owner/name@revision`), or a model of the API; "
        "empty: `smollm2` (`minilm` for `embed`), or the only model of the server, or the first model of the API.",
    )
    profile: str = Field("", description="For an API: name of the profile; default: the name of the backend.")
    system: str = Field("", max_length=100_000, description="System prompt before every query.")
    template: str = Field(
        "",
        max_length=100_000,
        description="Jinja template of the prompt, with the fields of a row; default: the context, then the query.",
    )
    chat: Literal["auto", "never"] = Field("auto", description="`auto`: apply the model's chat template if it has one.")
    sampling: Sampling = Field(default_factory=Sampling)
    logprobs: bool = Field(False, description="Whether the log-probability of each token of an answer is kept.")
    limit: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Maximum rows of the job; the first rows are used."
    )
    max_samples_per_worker: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="Maximum rows per device slot registered at submit; the job uses the first rows up to the sum.",
    )
    timeout_s: float = Field(600.0, gt=0, le=86_400, description="Timeout of an answer, in seconds.")
    max_retries: int = Field(3, ge=0, le=20, description="Maximum retries of a failed API call.")

    @model_validator(mode="after")
    def _embeds_on_a_device(self) -> Self:
        if self.task == "embed" and self.backend not in DEVICE_BACKENDS:
            raise ValueError(f"`task`: embed runs on a device: `backend` must be {' or '.join(DEVICE_BACKENDS)}")
        return self

    @property
    def asks_an_api(self) -> bool:
        return self.backend in API_BACKENDS


class InferenceItem(BaseModel):
    """A row of a contexts file. Fields that are not declared here are passed through."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    id: StrictStr | StrictInt | None = None
    group_id: StrictStr | None = None
    original_item_id: StrictStr | StrictInt | None = None
    query_index: StrictInt | StrictStr | None = None
    dedup_key: StrictStr | None = None
    query: StrictStr | None = Field(None, description="The query to answer.")
    messages: Chat | None = Field(None, description="Instead of `query`: chat messages, sent unchanged.")
    context: StrictStr | None = Field(None, description="Context retrieved for the query.")
    retrieval_method: StrictStr | None = None
    retrieval_time: Annotated[StrictInt | StrictFloat, Field(ge=0)] | None = None
    success: StrictBool | None = Field(None, description="False: retrieval failed; the row is not run.")
    error: JsonValue = Field(None, description="Error of the retrieval, if `success` is false.")
    answered_as: dict[str, JsonValue] | None = Field(
        None, description="Set by the server: the earlier row with the same `dedup_key`, which supplies the query."
    )

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self.success is not False and self.query is None and self.messages is None:
            raise ValueError("`query`: is missing: give the row `query` or `messages`")
        return self
