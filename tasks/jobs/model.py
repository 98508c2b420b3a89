"""What a job is: the request as it comes in, the job as it is read back, and the outcome of an item."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from config.pools import StagePool
from config.queues import Priority
from tasks.errors import ApiTimeout, AssayError, Retryable
from tasks.jobs.state.layout import Layout
from tasks.jobs.states import ACTIVE, JobState
from tasks.providers.usage import Usage

Status = Literal["ok", "failed", "timed_out", "cancelled"]
CacheMode = Literal["use", "refresh", "off"]
#: How a stage runs: batch after batch, one coroutine per item, or on an engine that takes items as it has room.
StageMode = Literal["batch", "ask", "stream"]
JOB_ID = re.compile(r"[0-9a-f]{32}")


class Fill(BaseModel):
    """What a failed item is given instead of a score."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    fill: float


OnError = Literal["null", "fail"] | Fill


class JobHead(BaseModel):
    """One job as a client asks for it, without its items. The kind checks `spec`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    spec: dict[str, JsonValue] = Field(default_factory=dict)
    priority: Priority = "normal"
    cache: CacheMode = "use"
    on_error: OnError = Field("null", description="What the score of a failed item is; `fail` fails the whole job.")
    deadline_s: Annotated[float, Field(gt=0, strict=True)] | None = Field(
        None, description="Seconds after which the job ends, and what is unfinished is `timed_out`."
    )
    item_deadline_s: Annotated[float, Field(gt=0, strict=True)] | None = Field(
        None, description="Seconds one item may take once a worker has begun it, further tries included."
    )
    max_failed_share: float = Field(
        1.0, ge=0, le=1, strict=True, description="The job fails once a larger share of its items has."
    )
    slots: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None, description="Device slots that may work on the job, at most; by default all."
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def allowed_failed_share(self) -> float:
        return 0.0 if self.on_error == "fail" else self.max_failed_share

    @property
    def fill(self) -> float | None:
        """The score of a failed item."""
        return self.on_error.fill if isinstance(self.on_error, Fill) else None


class JobRequest(JobHead):
    """One job as a client asks for it. The kind checks `items`."""

    items: list[dict[str, JsonValue]] = Field(min_length=1)

    @property
    def head(self) -> JobHead:
        return JobHead.model_construct(**{name: getattr(self, name) for name in JobHead.model_fields})


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Sizes and times of one stage: of its batches, its chunks, and its share of the workers."""

    batch_items: int = 500
    """Items in one batch at most."""
    least_items: int = 1
    """Items in one chunk at least, however long they take: fewer would leave the engine half empty."""
    cost_s: float = 0.001
    """First estimate of the seconds one item takes; replaced by measurements."""
    timeout_s: float = 300.0
    """Seconds after which a batch counts as hung and its worker is killed."""
    most_out: int = 0
    """Items of a job in chunks at once at most, over all workers; 0: no limit."""


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A stage as the ledger knows it: data only. `tasks.jobs.stage.Stage` adds the code."""

    name: str
    pool: StagePool
    """`policy`: devices that have a policy server."""
    grouped: bool = False
    """Whether a batch holds whole groups."""
    mode: StageMode = "batch"
    limits: StageLimits = StageLimits()


@dataclass(frozen=True, slots=True)
class ItemError:
    type: str
    message: str
    retryable: bool = False
    retry_after_s: float = 0.0
    """Nobody need try before; the whole stage of its job rests so long."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is put into the sample queue of a rollout: samples of one prompt, as the object that a trainer reads."""

    oldest: int
    """Version of the weights that made its oldest token."""
    newest: int
    samples: int
    partial: int
    """Samples whose tokens several versions made."""
    body: Mapping[str, JsonValue]
    is_loose: bool = False
    """Its samples need not stay together."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a kind makes of one item: a value, or an error; then the stage it goes on to, if any."""

    score: float | None = None
    parts: Mapping[str, float] | None = None
    value: JsonValue = None
    error: ItemError | None = None
    timed_out: bool = False
    next: str = ""
    cached: bool = False
    bundle: Bundle | None = None
    """Of the last stage of a rollout."""
    if_not_retried: "Result | None" = None
    """Of a retryable error: the result that counts instead once no tries are left."""

    @classmethod
    def of_error(cls, error: AssayError) -> "Result":
        """Return the failure that an error means for an item; whether it is retried follows from the error's class."""
        failure = ItemError(error.name, str(error), isinstance(error, Retryable), getattr(error, "wait_s", 0.0))
        return cls(error=failure, timed_out=isinstance(error, ApiTimeout))

    @property
    def status(self) -> Status:
        if self.error is None:
            return "ok"
        return "timed_out" if self.timed_out else "failed"


#: What becomes of an item whose job was over while it ran.
STOPPED = Result(error=ItemError("cancelled", "The job was over before this item was done."))


@dataclass(frozen=True, slots=True)
class Job:
    """A job as others see it."""

    id: str
    kind: str
    state: JobState
    priority: Priority
    total: int
    """Items so far, for one that is open."""
    ok: int
    failed: int
    cached: int
    epoch: int
    paused: bool
    open: bool
    """More items may be added: a rollout that goes on."""
    trimmed: int
    """Number of items of a rollout, from the first on, whose outcomes were deleted."""
    layout: Layout
    reason: str
    reasons: dict[str, int]
    workers: dict[str, dict[str, float]]
    created_at: float
    started_at: float | None
    ended_at: float | None
    metadata: dict[str, Any]
    fill: float | None
    """The score that a failed item is given, if its request chose one."""
    rate: float | None
    """Items per second while it runs; over its whole run when it has ended."""
    eta_s: float | None
    asks: bool
    """Some of its work is done by outside APIs."""
    usage: Usage | None
    """What their answers used and cost; None when it never asks any."""

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE

    @property
    def trials(self) -> int:
        """Rows of the ledger that each item has."""
        return self.layout.trials
