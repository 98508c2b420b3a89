"""Request schema of rollouts: the validated spec and its prompts. docs/rollouts.md shows it in use.

A rollout without a `model` generates nothing: it is a sample queue for samples that clients put.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StrictStr, field_validator, model_validator

from tasks.inference.model import InferenceItem, InferenceSpec, Sampling
from tasks.rollouts.simulation import Simulation
from tasks.rollouts.weight_versions import SyncConfig
from tasks.scoring.messages import Chat
from tasks.scoring.model import Answer, ScoreSpec

Rule = Literal["version_lag", "proportion"]
Interrupt = Literal["continue", "restart", "finish"]

#: Maximum samples of a queue that a spec may set.
MOST_QUEUED = 1_000_000


class RolloutSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # --- generation and rewards ---
    model: str = Field(
        "", max_length=500, description="Model that generates; empty: no generation, clients put samples."
    )
    backend: Literal["local", "huggingface"] = Field("local", description="Source of the model.")
    system: str = Field("", max_length=100_000, description="System prompt before every prompt.")
    chat: Literal["auto", "never"] = Field("auto", description="`auto`: apply the model's chat template if it has one.")
    sampling: Sampling = Field(
        default_factory=lambda: Sampling(temperature=1.0),
        description="Sampling parameters; `n`: number of samples per prompt.",
    )
    reward: ScoreSpec | None = Field(None, description="Scorers, judge and penalties, as in the spec of a `score` job.")
    generation_timeout: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="Timeout of a sample in seconds, from the start of its generation; then its prompt fails.",
    )
    interrupt: Interrupt = Field(
        "continue",
        description="Treatment of unfinished samples when new weights arrive: `continue` with the new weights, "
        "`restart` the sample, or `finish` it with its first weights.",
    )

    # --- selection of prompts ---
    shuffle: bool = Field(True, description="Whether each epoch has its own random order, drawn with `seed`.")
    seed: int = Field(0, ge=0, lt=2**63, description="Random seed of the order of prompts and of the samples.")
    total_rollout_steps: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Number of prompts after which the rollout ends; by default it does not end."
    )

    # --- limits of asynchronous generation ---
    rule: Rule = Field(
        "version_lag", description="Rule that limits generation: versions, or a share of the samples needed."
    )
    max_staleness: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Maximum versions that a sample may lag behind when it is used; staler samples are dropped."
    )
    staleness_threshold: float | None = Field(
        None,
        ge=0,
        description="With `version_lag`: same as `max_staleness`; with `proportion`: the additional share of samples.",
    )
    train_batch_size: int = Field(64, ge=1, le=MOST_QUEUED, description="Samples that the trainer takes per version.")
    trigger_parameter_sync_step: int = Field(
        1, ge=1, le=100_000, description="With `proportion`: batches per version of the weights."
    )
    max_queue_size: int = Field(
        1000, ge=1, le=MOST_QUEUED, description="Maximum samples that are queued or in progress."
    )
    max_concurrent_samples: int = Field(
        0, ge=0, description="Maximum samples in progress; 0: only the other limits apply."
    )
    version: int = Field(0, ge=0, description="The trainer's version when the rollout begins.")

    # --- weight sync ---
    max_sync_retries: int = Field(3, ge=1, le=100, description="Maximum tries of a device to load new weights.")
    sync_timeout: float = Field(10.0, gt=0, le=86_400, description="Timeout of each try, in seconds.")
    sync_retry_delay: float = Field(0.1, ge=0, le=3600, description="Seconds between two tries.")

    simulated: Simulation | None = Field(
        None, description="Simulation that sleeps instead of running a model, for tests and measurements."
    )
    rollout: str = Field("", description="Set by the server: the rollout's own id.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lag = self.staleness_threshold
        if self.rule == "version_lag" and lag is not None:
            if lag != int(lag):
                raise ValueError("`staleness_threshold`: with `version_lag` it must be a whole number of versions")
            if self.max_staleness is not None and self.max_staleness != lag:
                raise ValueError("`staleness_threshold`: with `version_lag` it must be equal to `max_staleness`")
        if self.rule == "proportion" and lag is None:
            raise ValueError("`staleness_threshold`: is required by the rule `proportion`")
        if self.simulated and (self.model or self.reward):
            raise ValueError("`simulated`: replaces `model` and `reward`; leave both out")
        if self.generates and self.max_queue_size < max(self.train_batch_size, self.sampling.n):
            raise ValueError("`max_queue_size`: must hold a batch (`train_batch_size`) and a group (`sampling.n`)")
        return self

    @property
    def generates(self) -> bool:
        return bool(self.model or self.simulated)

    @property
    def staleness(self) -> int | None:
        """Maximum versions that a sample may lag behind; None: no limit."""
        if self.rule == "version_lag" and self.staleness_threshold is not None:
            return int(self.staleness_threshold)
        return self.max_staleness

    @property
    def sync(self) -> SyncConfig:
        return SyncConfig(self.max_sync_retries, self.sync_timeout, self.sync_retry_delay)

    def inference(self, index: int = 0) -> InferenceSpec:
        """Return the inference spec of a prompt. Its seed depends on the index only, so that a retry draws the same
        samples."""
        sampling = self.sampling.model_copy(
            update={"seed": (self.seed * 1_000_003 + self.sampling.seed + index) % 2**63}
        )
        return InferenceSpec(
            backend=self.backend,
            model=self.model,
            system=self.system,
            chat=self.chat,
            sampling=sampling,
            logprobs=True,
            timeout_s=self.generation_timeout,
        )

    def bounds(self) -> dict[str, Any]:
        """Return the limits in the form that the Lua scripts read."""
        staleness = self.staleness
        return {
            "generates": int(self.generates),
            "simulated": int(self.simulated is not None),
            "n": self.sampling.n,
            "rule": self.rule,
            "batch": self.train_batch_size,
            "max_staleness": "" if staleness is None else staleness,
            "threshold": self.staleness_threshold or 0,
            "trigger": self.trigger_parameter_sync_step,
            "max_queue_size": self.max_queue_size,
            "max_concurrent": self.max_concurrent_samples,
            "limit": self.total_rollout_steps or 0,
        }


class RolloutItem(BaseModel):
    """A prompt. Fields that are not declared here are passed on to the trainer."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    id: StrictStr | StrictInt | None = None
    group_id: StrictStr | None = None
    prompt: Chat = Field(description="A text, or chat messages.")
    reference: Answer | Annotated[list[Answer], Field(max_length=1000)] | None = Field(
        None, description="Reference answer, for scorers that compare."
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("prompt")
    @classmethod
    def _asks_something(cls, value: Any) -> Any:
        if not value:
            raise ValueError("is empty")
        return value

    def as_row(self) -> InferenceItem:
        """Convert the prompt to a row of an inference job."""
        if isinstance(self.prompt, str):
            return InferenceItem(query=self.prompt)
        return InferenceItem(messages=self.prompt)
