"""Request, query and response models of `/v1/rollouts`."""

from typing import Literal, Self

from pydantic import Field, JsonValue, StrictInt, model_validator

from config.queues import Priority
from config.rewards import Rewards
from tasks.rollouts.model import RolloutSpec
from tasks.scoring.model import ScoreSpec
from web.http.schemas import StrictModel
from web.jobs.schemas import JobView

Flag = Literal["true", "false"]


class RolloutHead(RolloutSpec):
    """Request for a rollout, without its prompts."""

    reward_name: str | None = Field(None, description="Name of a reward of the server, instead of `reward`.")
    priority: Priority = "normal"
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_server_fields(self) -> Self:
        if self.rollout:
            raise ValueError("`rollout`: is set by the server; remove it")
        if self.reward and self.reward_name is not None:
            raise ValueError("`reward_name`: is given together with `reward`; remove either")
        return self

    def spec(self, rewards: Rewards) -> RolloutSpec:
        """Return the spec, with the named reward resolved. Raises UnknownReward."""
        given = {name: getattr(self, name) for name in RolloutSpec.model_fields}
        if self.reward_name is not None:
            given["reward"] = ScoreSpec.model_validate(rewards.get(self.reward_name).spec)
        return RolloutSpec.model_construct(**given)


class RolloutRequest(RolloutHead):
    prompts: list[dict[str, JsonValue]] = Field(
        default_factory=list,
        description="Objects with a `prompt`, a text or messages; `reference` and further fields stay with it.",
    )


class SyncDevice(StrictModel):
    state: Literal["following", "awaited", "left"]
    version: int = Field(description="Version that it confirmed last.")
    latency_s: float = Field(description="Seconds that it took to load this version.")
    reason: str = Field(description="Reason for which it left; empty otherwise.")


class SyncView(StrictModel):
    version: int = Field(description="Version that the devices must load.")
    state: Literal["synced", "syncing", "rolled_back"]
    reason: str = Field(description="Reason of the last rollback; empty otherwise.")
    failed_version: int | None = Field(description="Version of the last rollback; null without a rollback.")
    sync_s: float = Field(description="Seconds from the last announcement until the last device confirmed it.")
    syncs: int
    rollbacks: int
    devices: dict[str, SyncDevice]


class RolloutStatistics(StrictModel):
    queue_size: int = Field(description="Number of queued samples.")
    max_queue_size: int
    queue_utilization: float
    leased_samples: int = Field(description="Samples that were taken and not acknowledged.")
    samples_under_way: int = Field(description="Samples that are generated or rewarded now.")
    total_produced: int = Field(description="Samples put into the queue so far.")
    total_consumed: int = Field(description="Samples acknowledged so far.")
    handed_samples: int
    returned_samples: int = Field(description="Samples returned, or not acknowledged in time.")
    dropped_samples: int
    dropped_stale_samples: int = Field(description="Equal to `dropped_samples`.")
    lost_samples: int = Field(description="Samples dropped because their bodies were lost with Redis or the storage.")
    total_generated_samples: int
    generation_errors: int = Field(description="Failed prompts; the job's `reasons` has their error types.")
    current_param_version: int
    max_staleness: int | None
    is_paused: bool
    pause_count: int
    resume_count: int
    metrics: dict[str, float] = Field(description="Metrics by the names that trainers log.")


class BatchView(StrictModel):
    samples: int
    mean_age: float = Field(
        description="Mean number of versions from a sample's oldest token to the trainer's version."
    )
    max_age: float
    mean_wait_s: float = Field(description="Mean seconds from put to get.")


class BatchList(StrictModel):
    batches: list[BatchView]


class RolloutView(StrictModel):
    id: str
    job: JobView
    statistics: RolloutStatistics
    sync: SyncView | None = Field(description="State of the weight sync; null for a rollout without generation.")


class PauseView(StrictModel):
    paused: bool
    holds: bool = Field(description="Whether generation has stopped.")
    generating: int = Field(description="Number of chunks that are still generating.")


class PauseQuery(StrictModel):
    wait: float = Field(
        0,
        ge=0,
        le=300,
        description="Seconds to wait until generation has stopped, or has resumed.",
        allow_inf_nan=False,
    )


class SamplesQuery(StrictModel):
    n: int = Field(1, ge=1, le=10_000, description="Number of samples to take.")
    least: int | None = Field(
        None, ge=1, le=10_000, description="Minimum number of samples of a batch; the default is `n`."
    )
    current_version: int | None = Field(
        None,
        ge=0,
        le=2**53,
        description="Version of the trainer: samples that are too stale are dropped. The default is the version sent "
        "last.",
    )
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait for enough samples.", allow_inf_nan=False)
    whole: Flag = Field(
        "false", description="Whether samples of a prompt stay together; the batch may then exceed `n`."
    )
    consumer: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_.:/-]{0,100}$",
        description="Name of the consumer. A named consumer holds a single batch: its next request returns samples "
        "that it did "
        "not acknowledge.",
    )
    lease_s: float = Field(
        600, gt=0, le=86_400, description="Seconds until a batch without acknowledgement returns to the queue."
    )
    acknowledge: str = Field("", pattern=r"^([0-9a-f]{32})?$", description="Id of the batch that the trainer has used.")


Acknowledgement = Literal["done", "before", "lapsed"]


class SampleGroup(StrictModel):
    """Samples of a prompt, or a single sample that a client put."""

    id: int
    first: int = Field(description="Position of the first sample in its group.")
    count: int
    of: int = Field(description="Number of samples of the whole group.")
    param_version: int = Field(description="Version of the weights that generated its oldest token.")
    newest_version: int
    put_at: float
    group_id: str | None
    samples: list[JsonValue]
    index: int | None = Field(None, description="Index of the prompt in the rollout, counted over every epoch.")
    item: dict[str, JsonValue] | None = Field(None, description="The prompt item, unchanged.")
    prompt_ids: list[int] | None = None
    seconds: float | None = Field(None, description="Seconds of its generation.")
    epoch: int | None = None
    metadata: dict[str, JsonValue] | None = None


class SampleBatch(StrictModel):
    batch: str | None = Field(description="Id of the batch, for its acknowledgement; null without enough samples.")
    samples: int
    current_version: int
    dropped: int = Field(description="Number of samples dropped as too stale.")
    queued: int = Field(description="Number of queued samples.")
    acknowledgement: Acknowledgement | None = Field(
        description="Result of `acknowledge`: `done`, `before` (already acknowledged), or `lapsed` (its lease had "
        "expired)."
    )
    groups: list[SampleGroup]


class PutQuery(StrictModel):
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait for room in the queue.", allow_inf_nan=False)


class PutRequest(StrictModel):
    samples: list[JsonValue] = Field(min_length=1, max_length=1000)
    param_version: StrictInt = Field(
        0, ge=0, le=2**53, description="Version of the weights that generated the samples."
    )
    group_id: str | None = Field(
        None, max_length=500, description="Group id: the samples belong to the same prompt, and stay together."
    )
    epoch: StrictInt | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class PutResult(StrictModel):
    put: int
    queued: int


class BatchResult(StrictModel):
    acknowledgement: Acknowledgement | None = Field(None, description="Result of an acknowledgement.")
    samples: int


class VersionRequest(StrictModel):
    version: StrictInt = Field(ge=1, le=2**53)
    uri: str = Field(
        min_length=1, max_length=4000, description="URI of a safetensors file, or of a folder of safetensors files."
    )
    sha256: str = Field(
        "", pattern=r"^([0-9a-f]{64})?$", description="SHA-256 of the file; for a folder, of the output of `sha256sum`."
    )


class VersionQuery(StrictModel):
    version: int | None = Field(None, ge=1, le=2**53, description="The version, if the body is the weights.")
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait for the devices.", allow_inf_nan=False)
