"""Request and response models of `/v1/jobs`: jobs, results, items, summaries, and the queries that read them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Json, JsonValue, WithJsonSchema

from config.queues import Priority
from tasks.jobs.model import CacheMode, Fill, JobHead, Status
from tasks.jobs.states import JobState
from web.http.schemas import StrictModel
from web.usage.schemas import UsageView


class ItemError(StrictModel):
    type: str = Field(examples=["worker_lost"])
    message: str
    retryable: bool


class ResultRow(StrictModel):
    """The outcome of one item."""

    index: int
    id: str | int | None
    group_id: str | None
    status: Status
    score: float | None = Field(description="For a failed item, the value that `on_error` of the request sets.")
    valid: bool = Field(description="Whether the score counts: false for every item that has not succeeded.")
    parts: dict[str, float | None] | None
    value: JsonValue
    error: ItemError | None
    cached: bool
    attempts: int
    latency_ms: float | None
    worker: str | None


class WorkerShare(StrictModel):
    items: int
    seconds: float


class JobView(StrictModel):
    id: str
    kind: str
    state: JobState
    priority: Priority
    total: int | None = Field(description="Number of items; while the job is open, the number so far.")
    open: bool = Field(description="Whether items may still be added: a rollout in progress.")
    ok: int
    failed: int
    cached: int
    epoch: int = Field(description="Number of retries of the job.")
    paused: bool
    reason: str = Field(description="Why the job ended early; empty otherwise.")
    reasons: dict[str, int] = Field(description="Failed items by error type.")
    workers: dict[str, WorkerShare]
    created_at: float = Field(description="Unix time in seconds, like the other times.")
    started_at: float | None
    ended_at: float | None
    metadata: dict[str, JsonValue]
    rate: float | None = Field(description="Items per second.")
    eta_s: float | None
    usage: UsageView | None = Field(description="Usage of outside APIs by this job; null when it calls no API.")
    notes: list[str] = Field(description="Notes about the results, such as that a development API judged them.")
    results_url: str
    events_url: str


class JobWithResults(JobView):
    results: list[ResultRow] | None = Field(
        None,
        description="Present only when the job has ended and has at most 10,000 items; otherwise use `results_url`.",
    )


class RetriedJob(JobView):
    retried: int = Field(description="Number of items that are retried.")


class RepairedJob(JobView):
    repaired: int = Field(description="Number of items that are pending again; 0 if nothing was wrong.")


class CancelQuery(StrictModel):
    purge: bool = Field(default=False, description="Also delete the job with its results, as if it had expired.")


class JobPage(StrictModel):
    jobs: list[JobView]
    next: str | None = Field(
        description="The `cursor` of the next page; null after the last. A filtered page may be short or empty."
    )


class ResultPage(StrictModel):
    state: JobState
    total: int | None
    results: list[ResultRow]
    next: int | None = Field(description="The `start` of the next page; null after the last.")


class ScoreBin(StrictModel):
    low: float
    high: float = Field(description="Equal to `low` where each value has a bin of its own.")
    count: int


class ScoreSummary(StrictModel):
    n: int
    mean: float
    least: float
    most: float
    bins: list[ScoreBin]


class LatencySummary(StrictModel):
    """Latency in milliseconds of the items that were computed, without cached items."""

    n: int
    least: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


class FailureExample(StrictModel):
    index: int
    id: str | int | None
    worker: str | None
    attempts: int
    message: str
    retryable: bool


class FailureGroup(StrictModel):
    type: str
    count: int = Field(description="Failures of this type in the whole job, where the ledger counts the type.")
    examples: list[FailureExample] = Field(
        description="Up to three examples with different messages; empty if the sample contains no failure."
    )


class SummaryView(StrictModel):
    items: int
    looked_at: int = Field(description="Number of items with an outcome that the summary is computed from.")
    is_sample: bool
    statuses: dict[str, int] = Field(description="Number of items by status, of `looked_at`.")
    scores: ScoreSummary | None
    latency_ms: LatencySummary | None
    failures: list[FailureGroup]


class ItemPage(StrictModel):
    state: JobState
    total: int | None
    next: int | None = Field(description="The `start` of the next page; null after the last.")
    items: list[ResultRow]


class WaitQuery(StrictModel):
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait for the results.", allow_inf_nan=False)


def _on_error(value: object) -> object:
    """Parse `on_error` as in the JSON body: a word or an object. In a query the word needs no quotes."""
    return value if value in ("null", "fail") else Fill.model_validate_json(str(value))


OnErrorWord = Annotated[Literal["null", "fail"] | Fill, BeforeValidator(_on_error), WithJsonSchema({"type": "string"})]


class JobByUrl(JobHead):
    """A job whose items are in a file that the server reads."""

    items_url: str = Field(
        min_length=1,
        max_length=4000,
        description="A JSONL file (.gz and .zst are decompressed) below a prefix in the server's `ASSAY_INPUT_URLS`.",
    )


class SubmitQuery(WaitQuery):
    """Query of a submit: `wait`, and with a JSONL body the fields of the job."""

    kind: str | None = Field(None, description="Required with a JSONL body.")
    spec: Json[dict[str, JsonValue]] | None = Field(None, description="JSON.")
    priority: Priority | None = None
    cache: CacheMode | None = None
    on_error: OnErrorWord | None = Field(None, description='`null`, `fail`, or JSON such as `{"fill": 0}`.')
    deadline_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    item_deadline_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_failed_share: float | None = Field(None, ge=0, le=1)
    slots: int | None = Field(None, ge=1)
    metadata: Json[dict[str, JsonValue]] | None = Field(None, description="JSON.")


class JobListQuery(StrictModel):
    kind: str | None = None
    state: JobState | None = None
    limit: int = Field(50, ge=1, le=200)
    cursor: str | None = None


class ItemQuery(StrictModel):
    start: int = Field(0, ge=0, le=2**53, description="Index of the first item to read.")
    limit: int = Field(50, ge=1, le=500)
    status: Status | None = None
    error: str | None = Field(None, max_length=100, description="The error's type.")
    search: str | None = Field(
        None,
        max_length=200,
        description="A part of the id, of the group's id or of the error's message; or the index.",
    )


class ResultQuery(StrictModel):
    start: int = Field(0, ge=0, le=2**53)
    limit: int | None = Field(
        None,
        ge=1,
        le=2**53,
        description="Maximum number of rows. A page of JSON has 1,000 by default, and at most 10,000.",
    )


#: The fields of JobView that are attributes of Job.
JOB_FIELDS = tuple(name for name in JobView.model_fields if name != "notes" and not name.endswith("_url"))
