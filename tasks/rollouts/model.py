"""What a rollout may ask for. docs/rollouts.md shows it in use.

A rollout without a `model` generates nothing: it is a sample queue that others put into.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StrictStr, field_validator, model_validator

from tasks.inference.model import InferenceItem, InferenceSpec, Sampling
from tasks.rollouts.simulation import Simulation
from tasks.rollouts.versions import SyncConfig
from tasks.scoring.messages import Chat
from tasks.scoring.model import Answer, ScoreSpec

Rule = Literal["version_lag", "proportion"]
Interrupt = Literal["continue", "restart", "finish"]

#: Samples that a queue may be asked to hold.
MOST_QUEUED = 1_000_000


class RolloutSpec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # --- what is generated ---
    model: str = Field("", max_length=500, description="Which model generates; empty: none, samples come from outside.")
    backend: Literal["local", "huggingface"] = Field("local", description="Where the model is from.")
    system: str = Field("", max_length=100_000, description="What stands before every prompt.")
    chat: Literal["auto", "never"] = Field(
        "auto", description="`auto`: through the model's chat template if it has one."
    )
    sampling: Sampling = Field(
        default_factory=lambda: Sampling(temperature=1.0), description="How samples are drawn; `n` of each prompt."
    )
    reward: ScoreSpec | None = Field(None, description="Scorers, a judge, penalties: as the spec of a `score` job.")
    generation_timeout: float = Field(
        600.0,
        gt=0,
        le=86_400,
        description="Seconds one sample may take, from when its device begins it; then its prompt fails.",
    )
    interrupt: Interrupt = Field(
        "continue",
        description="What becomes of a sample in the making when new weights arrive: it goes on with them, begins "
        "again, or is finished with those it began with.",
    )

    # --- which prompts, how often ---
    shuffle: bool = Field(True, description="Whether each epoch has an order of its own, drawn with `seed`.")
    seed: int = Field(0, ge=0, lt=2**63, description="Of the order of prompts and of the samples.")
    total_rollout_steps: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Prompts after which the rollout ends; by default it goes on."
    )

    # --- how far ahead of the trainer ---
    rule: Rule = Field("version_lag", description="What bounds generation: versions, or a share of the samples needed.")
    max_staleness: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Versions that a sample may be behind when it is used; staler ones are dropped."
    )
    staleness_threshold: float | None = Field(
        None, ge=0, description="By `version_lag` the same as `max_staleness`; by `proportion` the share beyond."
    )
    train_batch_size: int = Field(64, ge=1, le=MOST_QUEUED, description="Samples that the trainer takes for a version.")
    trigger_parameter_sync_step: int = Field(1, ge=1, le=100_000, description="By `proportion`: batches of a version.")
    max_queue_size: int = Field(1000, ge=1, le=MOST_QUEUED, description="Samples that wait or are made, at most.")
    max_concurrent_samples: int = Field(0, ge=0, description="Samples in the making at most; 0: as the others allow.")
    version: int = Field(0, ge=0, description="The trainer's version when the rollout begins.")

    # --- how weights come to the devices ---
    max_sync_retries: int = Field(3, ge=1, le=100, description="Times a device tries to take new weights.")
    sync_timeout: float = Field(10.0, gt=0, le=86_400, description="Seconds one try may take.")
    sync_retry_delay: float = Field(0.1, ge=0, le=3600, description="Seconds between two tries.")

    simulated: Simulation | None = Field(None, description="Instead of a model: sleeps, for tests and measurements.")
    rollout: str = Field("", description="Written by the server: the rollout's own id.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lag = self.staleness_threshold
        if self.rule == "version_lag" and lag is not None:
            if lag != int(lag):
                raise ValueError("`staleness_threshold`: by `version_lag` it is a number of versions, a whole one")
            if self.max_staleness is not None and self.max_staleness != lag:
                raise ValueError("`staleness_threshold`: by `version_lag` it is the same as `max_staleness`")
        if self.rule == "proportion" and lag is None:
            raise ValueError("`staleness_threshold`: is what `proportion` goes by; give it")
        if self.simulated and (self.model or self.reward):
            raise ValueError("`simulated`: takes the place of `model` and `reward`; leave those out")
        if self.generates and self.max_queue_size < max(self.train_batch_size, self.sampling.n):
            raise ValueError("`max_queue_size`: must hold a batch (`train_batch_size`) and a group (`sampling.n`)")
        return self

    @property
    def generates(self) -> bool:
        return bool(self.model or self.simulated)

    @property
    def staleness(self) -> int | None:
        """Versions that a sample may be behind; None: any number."""
        if self.rule == "version_lag" and self.staleness_threshold is not None:
            return int(self.staleness_threshold)
        return self.max_staleness

    @property
    def sync(self) -> SyncConfig:
        return SyncConfig(self.max_sync_retries, self.sync_timeout, self.sync_retry_delay)

    def inference(self, index: int = 0) -> InferenceSpec:
        """How the prompt of this index is generated: each with randomness of its own, the same when it is run again."""
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
        """The same as the scripts read it."""
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
    """One prompt. Fields that are not named here are passed on to the trainer."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    id: StrictStr | StrictInt | None = None
    group_id: StrictStr | None = None
    prompt: Chat = Field(description="A text, or chat messages.")
    reference: Answer | Annotated[list[Answer], Field(max_length=1000)] | None = Field(
        None, description="The right answer, for scorers that compare."
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("prompt")
    @classmethod
    def _asks_something(cls, value: Any) -> Any:
        if not value:
            raise ValueError("is empty")
        return value

    def as_row(self) -> InferenceItem:
        """As an engine is asked it."""
        if isinstance(self.prompt, str):
            return InferenceItem(query=self.prompt)
        return InferenceItem(messages=self.prompt)
