"""What goes over the wire: for the OpenAPI document, and to read queries. `web/answers.py` writes without it."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Json, JsonValue, StrictInt, WithJsonSchema

from config.queues import Priority
from tasks.jobs.model import CacheMode, Fill, Status

State = Literal["queued", "running", "finishing", "reopening", "done", "failed", "cancelled"]


class Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# --- answers ----------------------------------------------------------------------------------------------------------


class ItemProblem(Wire):
    type: str = Field(examples=["worker_lost"])
    message: str
    retryable: bool


class Row(Wire):
    """The outcome of one item."""

    index: int
    id: str | int | None
    group_id: str | None
    status: Status
    score: float | None = Field(description="For a failed item what `on_error` of the request says.")
    valid: bool = Field(description="Whether the score is one: false for every item that has not succeeded.")
    parts: dict[str, float | None] | None
    value: JsonValue
    error: ItemProblem | None
    cached: bool
    attempts: int
    latency_ms: float | None
    worker: str | None


class WorkerShare(Wire):
    items: int
    seconds: float


class UsageView(Wire):
    calls: int
    prompt_tokens: int
    completion_tokens: int
    cost: dict[str, float] = Field(description="By currency.")


class JobView(Wire):
    id: str
    kind: str
    state: State
    priority: Priority
    total: int | None = Field(description="Items; so far, while the job is open.")
    open: bool = Field(description="More items may be appended.")
    ok: int
    failed: int
    cached: int
    epoch: int = Field(description="How often the job was retried.")
    paused: bool
    reason: str = Field(description="Why it ended early; empty otherwise.")
    reasons: dict[str, int] = Field(description="Failed items by error type.")
    workers: dict[str, WorkerShare]
    created_at: float = Field(description="Seconds since 1970, as the other times.")
    started_at: float | None
    ended_at: float | None
    metadata: dict[str, JsonValue]
    rate: float | None = Field(description="Items per second.")
    eta_s: float | None
    usage: UsageView | None = Field(description="What outside APIs did for it; null when it asks none.")
    notes: list[str] = Field(description="What one should know of its results, such as that a development API judged.")
    results_url: str
    events_url: str


class JobAnswer(JobView):
    results: list[Row] | None = Field(
        None, description="Only when the job has ended and has at most 10,000 items; else `results_url` is the way."
    )


class RetriedJob(JobView):
    retried: int = Field(description="Items that run again.")


class JobPage(Wire):
    jobs: list[JobView]
    next: str | None = Field(description="The `cursor` of the next page. A page with a filter may be short or empty.")


class ResultPage(Wire):
    state: State
    total: int | None
    results: list[Row]
    next: int | None = Field(description="The `start` of the next page; null after the last.")


class PositionBias(Wire):
    first_wins: float | None = Field(description="Share of decided verdicts for the one shown first; 0.5 is no bias.")
    verdicts: int = Field(description="Decided verdicts of pairs.")
    orders_disagree: float | None = Field(description="Share of pairs whose two orders name different winners.")


class LengthBias(Wire):
    with_score: float | None = Field(description="Rank correlation of the response's length with its score.")
    with_error: float | None = Field(description="The same with score minus label: the judge's own leaning.")


class CalibrationView(Wire):
    """A judge's scores beside people's labels. What is not defined, such as the correlation of a constant, is null."""

    job: str
    state: State = Field(description="Before the job has ended, this is of the items that have an outcome.")
    total: int
    pending: int = Field(description="Items without an outcome, which are left out.")
    n: int = Field(description="Items with score and label, which are compared.")
    without_score: int = Field(description="Items that failed.")
    without_label: int
    off_scale: int = Field(description="Items whose label has no place on the scale.")
    agreement: float | None = Field(description="Share of scores equal to their label, in the steps of the scale.")
    kappa: float | None = Field(description="Cohen's.")
    weighted_kappa: float | None = Field(description="The same, by the square of how far they lie apart.")
    pearson: float | None
    spearman: float | None
    mean_error: float | None = Field(description="Score minus label.")
    position: PositionBias
    length: LengthBias


class InferenceShare(Wire):
    """What one worker did in an inference job, or all."""

    contexts: int = Field(description="Rows that have an outcome.")
    successes: int
    errors: int
    success_rate: float | None
    cached: int
    average_inference_time: float | None = Field(description="Seconds of a row that was computed.")
    prompt_tokens: int
    completion_tokens: int
    tokens_per_s: float | None = Field(description="Tokens of answers for each second that the worker, or job, took.")
    close_calls: int = Field(description="Rows whose answer another batch might have changed; 0 in float32 on a CPU.")
    reasons: dict[str, int] = Field(description="Failed rows by error type.")


class WorkerStatistics(InferenceShare):
    worker: str
    worker_rank: int | None


class StatisticsView(Wire):
    workers: list[WorkerStatistics]
    total: InferenceShare = Field(description="Rows that came from the cache before anybody worked are here only.")


class Problem(Wire):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    line: int | None = Field(None, description="The line of a JSONL body.")
    error: str | None = Field(None, description="The detail again, where a protocol of others wants it so (`/score`).")


class QueueView(Wire):
    queue: str
    waiting: int = Field(description="Messages on the broker.")
    workers: list[str]
    mode: Literal["open", "paused", "draining"]


class Queues(Wire):
    queues: list[QueueView]


class GpuView(Wire):
    device: str = Field(description="As in CUDA_VISIBLE_DEVICES.")
    uuid: str
    utilisation: float | None = Field(description="0 to 1; null where the driver does not say.")
    memory_used_mb: int
    memory_total_mb: int
    name: str = Field(description="Which product it is; empty where the driver does not say.")


class ChunkView(Wire):
    """A chunk that a worker runs now."""

    queue: str
    chunk: str
    worker: str
    job: str
    kind: str
    priority: Priority
    stage: str
    items: int
    since: float = Field(description="When it was taken.")


class DeviceView(Wire):
    queue: str
    node: str
    slot: int | None
    devices: list[str]
    state: str
    busy: bool
    busy_s: float = Field(description="Seconds since its worker started in which it ran something.")
    models: list[str] = Field(description="That its process holds.")
    weights: dict[str, str] = Field(
        description="By model, the version of its weights: a hub revision, a fingerprint of its files, or, where a "
        "rollout put them there, `<rollout_id>:<version>:<n>`."
    )
    loading: str = Field(description="The model that is being loaded; empty: none.")
    memory_used_mb: int | None = Field(description="Of all its GPUs; null where there is none, as the next.")
    memory_total_mb: int | None
    gpus: list[GpuView]
    running: list[ChunkView]
    mode: Literal["open", "paused", "draining"]


class Devices(Wire):
    devices: list[DeviceView]


class Workers(Wire):
    workers: list[dict[str, Any]]


class CacheSize(Wire):
    keys: int = Field(description="Keys of the cache Redis, which may hold more than answers.")
    bytes: int
    max_bytes: int = Field(description="0: no limit.")


class Purged(Wire):
    removed: int


class StageExplanation(Wire):
    stage: str
    reason: str
    request: str | None = Field(None, description="Hash of all that determines the answer.")
    in_cache: bool | None = Field(None, description="Whether the answer is there now.")
    key: dict[str, JsonValue] | None = Field(None, description="What determines the answer; long texts as hashes.")
    differs: dict[str, JsonValue] | None = Field(
        None, description="Parts of the key in which the last answer for this item id differs."
    )


class Explanation(Wire):
    job: str
    index: int
    id: str | int | None
    cached: bool
    stages: list[StageExplanation]


class ScorerView(Wire):
    name: str
    description: str
    options: dict[str, JsonValue] = Field(description="JSON schema.")


class Scorers(Wire):
    scorers: list[ScorerView]


class Limits(Wire):
    rpm: int | None = Field(description="Requests a minute; null: no limit.")
    tpm: int | None = Field(description="Tokens a minute; null: no limit.")
    concurrency: int = Field(description="Calls in flight at most.")


class CircuitView(Wire):
    state: Literal["closed", "open", "half_open"] = Field(description="Open: the API is let alone for a while.")
    reason: str
    wait_s: float = Field(description="Seconds until a call may try again.")


class ProfileView(Wire):
    name: str
    host: str = Field(description="Of its URL, with the port unless that goes without saying.")
    models: list[str]
    limits: Limits = Field(description="In force.")
    changed: list[str] = Field(description="Limits that were set over HTTP and go before the profile's own.")
    in_flight: int
    waiting: int = Field(description="Calls that wait for their turn.")
    ceiling: int = Field(description="Calls in flight that the API bears now, as far as is known.")
    paused_s: float = Field(description="Seconds that the API asked everybody to wait.")
    circuit: CircuitView
    fallback: str | None
    usage_today: UsageView


class ProfileList(Wire):
    profiles: list[ProfileView]


class UsageOfDay(Wire):
    day: str
    profiles: dict[str, UsageView]
    tokens: dict[str, UsageView] = Field(
        description="By name of the bearer token whose jobs asked; empty without tokens."
    )


class LimitChange(Wire):
    rpm: StrictInt | None = Field(None, ge=1, le=10**9, description="Requests a minute; null: as the profile says.")
    tpm: StrictInt | None = Field(None, ge=1, le=10**12, description="Tokens a minute.")
    concurrency: StrictInt | None = Field(None, ge=1, le=10_000, description="Calls in flight at most.")


class QueueGlance(QueueView):
    chunks: int = Field(description="Dispatched and not taken.")
    items: int = Field(description="In these chunks.")
    oldest_s: float | None = Field(description="How long the oldest of them has waited.")
    running: int = Field(description="Chunks that are worked on.")
    rate: float = Field(description="Items a second, as its workers did them in the last seconds.")


class PoolGlance(Wire):
    pool: str
    items: int = Field(description="That wait for a chunk.")
    jobs: int = Field(description="That these belong to.")
    oldest_s: float | None = Field(description="Since the oldest of these jobs was made.")


class DeviceGlance(DeviceView):
    rate: float


class PolicyGlance(Wire):
    total_clients: int
    connected: int
    busy: int


class CallLatency(Wire):
    """Milliseconds, of all calls since the state Redis was set up."""

    p50: float | None
    p95: float | None


class ProfileGlance(ProfileView):
    latency_ms: CallLatency | None
    refused_429: int = Field(description="Calls that were answered 429, since the state Redis was set up.")


class RecentGlance(Wire):
    """Of the newest jobs, 200 at most."""

    jobs: int
    states: dict[str, int]
    items: int = Field(description="That have an outcome.")
    failed: int
    reasons: dict[str, int] = Field(description="Why they failed, the most frequent reason first.")
    hits: int = Field(description="Items that came from the cache.")
    calls_saved: int = Field(description="The same of jobs that ask outside APIs.")


class OverviewView(Wire):
    """Everything at a glance."""

    at: float
    ready: bool
    missing: list[str]
    notes: list[str]
    active: int = Field(description="Jobs that have not ended, those that a benchmark submits among them.")
    rate: float = Field(description="Items a second of all workers.")
    queues: list[QueueGlance]
    pools: list[PoolGlance]
    devices: list[DeviceGlance]
    workers: list[dict[str, Any]]
    policies: PolicyGlance
    cache: CacheSize
    recent: RecentGlance
    profiles: list[ProfileGlance]
    jobs: list[JobView] = Field(description="The active ones, then the newest; without those that a benchmark submits.")


class ScoreBin(Wire):
    low: float
    high: float = Field(description="The same as `low` where each value is counted by itself.")
    count: int


class ScoreFigures(Wire):
    n: int
    mean: float
    least: float
    most: float
    bins: list[ScoreBin]


class LatencyFigures(Wire):
    """Milliseconds of items that were computed, not cached."""

    n: int
    least: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


class FailureExample(Wire):
    index: int
    id: str | int | None
    worker: str | None
    attempts: int
    message: str
    retryable: bool


class Failures(Wire):
    type: str
    count: int = Field(description="Of all items of the job, where the ledger counts it.")
    examples: list[FailureExample] = Field(description="Up to three that say different things; none in the sample: [].")


class SummaryView(Wire):
    items: int
    looked_at: int = Field(description="Items with an outcome that these figures are of.")
    is_sample: bool
    statuses: dict[str, int] = Field(description="Of those looked at.")
    scores: ScoreFigures | None
    latency_ms: LatencyFigures | None
    failures: list[Failures]


class FoundItems(Wire):
    state: State
    total: int | None
    next: int | None = Field(description="The `start` of the next page; null: there are no more.")
    items: list[Row]


class Readiness(Wire):
    ready: bool
    missing: list[str]
    notes: list[str]
    """What works but is not what one would want in earnest."""


# --- queries ----------------------------------------------------------------------------------------------------------


class NoQuery(Wire):
    pass


class WaitQuery(Wire):
    wait: float = Field(0, ge=0, le=300, description="Seconds to wait for the results.", allow_inf_nan=False)


def _on_error(value: object) -> object:
    """As in the JSON body, where it is a word or an object; in a query the quotes may be left out."""
    return value if value in ("null", "fail") else Fill.model_validate_json(str(value))


OnErrorWord = Annotated[Literal["null", "fail"] | Fill, BeforeValidator(_on_error), WithJsonSchema({"type": "string"})]


class LinesQuery(WaitQuery):
    """The request around the items, when the body is JSONL."""

    kind: str | None = Field(None, description="Needed with a JSONL body.")
    spec: Json[dict[str, JsonValue]] | None = Field(None, description="JSON.")
    priority: Priority | None = None
    cache: CacheMode | None = None
    on_error: OnErrorWord | None = Field(None, description='`null`, `fail`, or JSON such as `{"fill": 0}`.')
    deadline_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    item_deadline_s: float | None = Field(None, gt=0, allow_inf_nan=False)
    max_failed_share: float | None = Field(None, ge=0, le=1)
    slots: int | None = Field(None, ge=1)
    metadata: Json[dict[str, JsonValue]] | None = Field(None, description="JSON.")


class UsageQuery(Wire):
    day: str | None = Field(None, pattern=r"^\d{4}-\d{2}-\d{2}$", description="A day in UTC; today by default.")


class ListQuery(Wire):
    kind: str | None = None
    state: State | None = None
    limit: int = Field(50, ge=1, le=200)
    cursor: str | None = None


class ItemQuery(Wire):
    start: int = Field(0, ge=0, le=2**53, description="Index of the first item that is looked at.")
    limit: int = Field(50, ge=1, le=500)
    status: Status | None = None
    error: str | None = Field(None, max_length=100, description="The error's type.")
    search: str | None = Field(
        None,
        max_length=200,
        description="A piece of the id, of the group's id or of the error's message; or the index.",
    )


class ExplainQuery(Wire):
    job: str
    index: int = Field(ge=0, le=2**53)


class PurgeQuery(Wire):
    kind: str | None = Field(None, pattern=r"^[a-z_]{1,40}$", description="Answers of this kind of job only.")
    model: str | None = Field(None, description="With this model only; and so on.")
    rubric: str | None = None
    profile: str | None = None


class ResultQuery(Wire):
    start: int = Field(0, ge=0, le=2**53)
    limit: int | None = Field(
        None, ge=1, le=2**53, description="Rows at most. A page of JSON has 1,000 unless told, and never over 10,000."
    )


class OutputQuery(Wire):
    start: int = Field(0, ge=0, le=2**53, description="Index of the first row.")
    rank: int | None = Field(None, ge=0, le=2**31, description="Only rows that the worker of this rank answered.")


#: The fields of a job's view that the job itself has.
JOB_FIELDS = tuple(name for name in JobView.model_fields if name != "notes" and not name.endswith("_url"))
