"""Request and response models of `/v1/jobs/{id}/output` and `/v1/jobs/{id}/statistics`."""

from pydantic import Field

from web.http.schemas import StrictModel


class InferenceStatistics(StrictModel):
    """Work of a worker in an inference job, or of every worker together."""

    contexts: int = Field(description="Number of rows with an outcome.")
    successes: int
    errors: int
    success_rate: float | None
    cached: int
    average_inference_time: float | None = Field(description="Mean seconds per computed row.")
    prompt_tokens: int
    completion_tokens: int
    tokens_per_s: float | None = Field(
        description="Completion tokens per second of the worker's, or the job's, running time."
    )
    close_calls: int = Field(
        description="Rows with an answer that a different batch might have changed; 0 in float32 on a CPU."
    )
    reasons: dict[str, int] = Field(description="Failed rows by error type.")


class WorkerStatistics(InferenceStatistics):
    worker: str
    worker_rank: int | None


class StatisticsView(StrictModel):
    workers: list[WorkerStatistics]
    total: InferenceStatistics = Field(description="Totals; they include rows from the cache, which no worker counts.")


class OutputQuery(StrictModel):
    start: int = Field(0, ge=0, le=2**53, description="Index of the first row.")
    rank: int | None = Field(None, ge=0, le=2**31, description="Only rows that the worker of this rank answered.")
