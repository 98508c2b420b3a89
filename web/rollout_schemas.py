"""What goes over the wire of rollouts: requests, queries and answers."""

from typing import Literal, Self

from pydantic import Field, JsonValue, StrictInt, model_validator

from config.queues import Priority
from config.rewards import Rewards
from tasks.rollouts.model import RolloutSpec
from tasks.scoring.model import ScoreSpec
from web.schemas import JobView, Wire

Flag = Literal["true", "false"]


class RolloutHead(RolloutSpec):
    """A rollout as a client asks for it, without its prompts."""

    reward_name: str | None = Field(None, description="Instead of `reward`: one of the server's named rewards.")
    priority: Priority = "normal"
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _leaves_to_us_what_is_ours(self) -> Self:
        if self.rollout:
            raise ValueError("`rollout`: is written by the server; leave it out")
        if self.reward and self.reward_name is not None:
            raise ValueError("`reward_name`: give this or `reward`, not both")
        return self

    def spec(self, rewards: Rewards) -> RolloutSpec:
        """Raises UnknownReward."""
        given = {name: getattr(self, name) for name in RolloutSpec.model_fields}
        if self.reward_name is not None:
            given["reward"] = ScoreSpec.model_validate(rewards.get(self.reward_name).spec)
        return RolloutSpec.model_construct(**given)


class RolloutRequest(RolloutHead):
    prompts: list[dict[str, JsonValue]] = Field(
        default_factory=list, description="Each has a `prompt`, a text or messages; `reference` and others go with it."
    )


class SyncDevice(Wire):
    state: Literal["following", "awaited", "left"]
    version: int = Field(description="That it confirmed last.")
    latency_s: float = Field(description="What that took it.")
    reason: str = Field(description="Why it left.")


class SyncView(Wire):
    version: int = Field(description="That devices are to hold.")
    state: Literal["synced", "syncing", "rolled_back"]
    reason: str = Field(description="Why the last version was taken back.")
    failed_version: int | None = Field(description="Which version was taken back last.")
    sync_s: float = Field(description="From the last announcement to the last device's word.")
    syncs: int
    rollbacks: int
    devices: dict[str, SyncDevice]


class RolloutStatistics(Wire):
    queue_size: int = Field(description="Samples that wait.")
    max_queue_size: int
    queue_utilization: float
    leased_samples: int = Field(description="Handed out and not acknowledged.")
    samples_under_way: int = Field(description="Generated or rewarded now.")
    total_produced: int = Field(description="Put into the queue so far.")
    total_consumed: int = Field(description="Acknowledged so far.")
    handed_samples: int
    returned_samples: int = Field(description="Given back, or not acknowledged in time.")
    dropped_samples: int
    dropped_stale_samples: int = Field(description="The same.")
    total_generated_samples: int
    generation_errors: int = Field(description="Prompts that failed; the job's `reasons` tell why.")
    current_param_version: int
    max_staleness: int | None
    is_paused: bool
    pause_count: int
    resume_count: int
    metrics: dict[str, float] = Field(description="By the names that trainers log.")


class BatchView(Wire):
    samples: int
    mean_age: float = Field(description="Versions between the trainer's and that of a sample's oldest token.")
    max_age: float
    mean_wait_s: float = Field(description="Seconds between put and get.")


class Batches(Wire):
    batches: list[BatchView]


class RolloutView(Wire):
    id: str
    job: JobView
    statistics: RolloutStatistics
    sync: SyncView | None = Field(description="Null for one that generates nothing.")


class Holding(Wire):
    paused: bool
    holds: bool = Field(description="Nothing is generated any more.")
    generating: int = Field(description="Chunks that are still generated.")


class HoldQuery(Wire):
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait until it holds.", allow_inf_nan=False)


class SamplesQuery(Wire):
    n: int = Field(1, ge=1, le=10_000, description="Samples wanted.")
    least: int | None = Field(
        None, ge=1, le=10_000, description="Samples without which there is no batch; `n` if not given."
    )
    current_version: int | None = Field(
        None, ge=0, le=2**53, description="The trainer's version: staler samples are dropped. By default the last told."
    )
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait until there are enough.", allow_inf_nan=False)
    whole: Flag = Field("false", description="Whether samples of one prompt stay together; `n` may be exceeded then.")
    consumer: str = Field(
        "",
        pattern=r"^[A-Za-z0-9_.:/-]{0,100}$",
        description="Your name. One with a name holds one batch: what it did not acknowledge goes back when it asks.",
    )
    lease_s: float = Field(
        600, gt=0, le=86_400, description="Seconds after which a batch that is not acknowledged goes back."
    )
    acknowledge: str = Field("", pattern=r"^([0-9a-f]{32})?$", description="The batch that you have used.")


Acknowledgement = Literal["done", "before", "lapsed"]


class SampleGroup(Wire):
    """Samples of one prompt, or one sample from outside."""

    id: int
    first: int = Field(description="Place of the first of these samples in their group.")
    count: int
    of: int = Field(description="Samples of the whole group.")
    param_version: int = Field(description="Of the weights that made its oldest token.")
    newest_version: int
    put_at: float
    group_id: str | None
    samples: list[JsonValue]
    index: int | None = Field(None, description="Which prompt of the rollout, counted over all epochs.")
    item: dict[str, JsonValue] | None = Field(None, description="The prompt as it was given.")
    prompt_ids: list[int] | None = None
    seconds: float | None = Field(None, description="That its generation took.")
    epoch: int | None = None
    metadata: dict[str, JsonValue] | None = None


class SampleBatch(Wire):
    batch: str | None = Field(description="To be acknowledged; null when there were not enough samples.")
    samples: int
    current_version: int
    dropped: int = Field(description="Samples that were too stale.")
    queued: int = Field(description="Samples that wait.")
    acknowledgement: Acknowledgement | None = Field(
        description="What became of `acknowledge`; `lapsed`: that batch went back to the queue before."
    )
    groups: list[SampleGroup]


class PutQuery(Wire):
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait for room.", allow_inf_nan=False)


class PutRequest(Wire):
    samples: list[JsonValue] = Field(min_length=1, max_length=1000)
    param_version: StrictInt = Field(0, ge=0, le=2**53, description="Of the weights that made them.")
    group_id: str | None = Field(None, max_length=500, description="They are of one prompt, and stay together.")
    epoch: StrictInt | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class PutAnswer(Wire):
    put: int
    queued: int


class BatchAnswer(Wire):
    acknowledgement: Acknowledgement | None = Field(None, description="Of a batch that was used.")
    samples: int


class VersionRequest(Wire):
    version: StrictInt = Field(ge=1, le=2**53)
    uri: str = Field(min_length=1, max_length=4000, description="A safetensors file, or a folder of them.")
    sha256: str = Field(
        "", pattern=r"^([0-9a-f]{64})?$", description="Of the file; of a folder, of what `sha256sum` says."
    )


class VersionQuery(Wire):
    version: int | None = Field(None, ge=1, le=2**53, description="With the weights themselves as body.")
    sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait for the devices.", allow_inf_nan=False)
