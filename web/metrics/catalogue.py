"""Every metric: its name, type, labels and meaning. What is not listed here cannot be told.

`python -m web.metrics.catalogue` prints the table that docs/metrics.md holds; `make docs` writes it there.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Type = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """Without `_total`, which a counter's samples end in."""
    type: Type
    labels: tuple[str, ...]
    meaning: str

    @property
    def sample(self) -> str:
        """As it is asked for."""
        return f"{self.name}_total" if self.type == "counter" else self.name


def _gauge(name: str, labels: str, meaning: str) -> Metric:
    return Metric(name, "gauge", tuple(labels.split()), meaning)


def _counter(name: str, labels: str, meaning: str) -> Metric:
    return Metric(name, "counter", tuple(labels.split()), meaning)


def _histogram(name: str, labels: str, meaning: str) -> Metric:
    return Metric(name, "histogram", tuple(labels.split()), meaning)


METRICS = (
    # The system.
    _gauge("assay_build_info", "version python", "Always 1; the labels tell the web process's versions."),
    _gauge("assay_redis_up", "role", "1 while this Redis answers (`state`, `cache`). At 0 its figures are left out."),
    _gauge("assay_redis_memory_bytes", "role", "Memory that Redis uses."),
    _gauge("assay_redis_memory_limit_bytes", "role", "Its `maxmemory`; 0: none."),
    _gauge("assay_cache_keys", "", "Keys of the cache Redis, which may hold more than answers."),
    # Jobs and items.
    _counter("assay_jobs_submitted", "kind", "Jobs that were accepted."),
    _counter("assay_jobs_ended", "kind state", "Jobs that ended: `done`, `failed`, `cancelled`."),
    _gauge("assay_jobs_active", "", "Jobs that have not ended."),
    _histogram("assay_job_seconds", "kind", "Seconds from a job's submit to its end."),
    _counter("assay_items", "kind status", "Items settled: `ok`, `failed`, `unfinished` (their job ended first)."),
    _counter("assay_items_cached", "kind", "Items of those that the cache answered: work, or calls, that were saved."),
    _counter("assay_item_errors", "type", "Failed items by the type of their error."),
    _counter("assay_item_retries", "kind", "Times that an item was put back to be tried again later."),
    _counter("assay_work_items", "kind pool", "Items worked on, once for each stage; `policy`: episodes."),
    _counter("assay_work_seconds", "kind pool", "Seconds that workers were at it."),
    # Queues and pools.
    _gauge("assay_queue_chunks", "queue state", "Chunks on a queue: `waiting` for a worker, or `running`."),
    _gauge("assay_queue_oldest_seconds", "queue", "Seconds that the oldest waiting chunk has waited; 0: none waits."),
    _gauge("assay_queue_held", "queue", "1 while the queue is paused or draining."),
    _gauge("assay_queue_readers", "queue", "Tasks that its live workers run at a time; 0: nobody reads it."),
    _gauge("assay_running_items", "queue kind", "Items of the chunks that run now; of policies: episodes."),
    _gauge("assay_pool_waiting_items", "pool priority", "Items that are in no chunk yet; `policy`: episodes."),
    _gauge("assay_pool_waiting_jobs", "pool priority", "Jobs that have such items."),
    _gauge("assay_pool_waiting_seconds", "pool", "For how long the job that is worst off was given nothing here."),
    _counter("assay_chunks_dispatched", "", "Chunks that were made."),
    _counter("assay_chunks_recovered", "", "Chunks taken back from processes that died or fell silent."),
    _counter("assay_processes_lost", "proof", "Processes gone while they held chunks: `seen` to end, or `silent`."),
    # Workers and devices.
    _gauge("assay_workers", "pool state", "Live workers."),
    _gauge("assay_worker_tasks", "worker pool", "Tasks that it has taken and not ended."),
    _counter("assay_worker_busy_seconds", "worker pool", "Seconds in which it ran something; its rate is the share."),
    _counter("assay_worker_cpu_seconds", "worker pool", "CPU seconds of its processes."),
    _gauge("assay_worker_memory_bytes", "worker pool", "Resident memory of its processes."),
    _gauge("assay_gpu_utilisation", "worker gpu", "Share of the last moment in which the GPU computed, 0 to 1."),
    _gauge("assay_gpu_memory_used_bytes", "worker gpu", "Memory of the GPU in use, whoever uses it."),
    _gauge("assay_gpu_memory_total_bytes", "worker gpu", "Memory that the GPU has."),
    # Outside APIs.
    _counter("assay_api_calls", "profile outcome", "Tries: `answered`, `limited` (429), `failed` (5xx, no answer)."),
    _counter("assay_api_tokens", "profile direction", "Tokens that the API counted: `prompt`, `completion`."),
    _counter("assay_api_cost", "profile currency", "What the calls cost, by the profile's prices."),
    _histogram("assay_api_call_seconds", "profile", "Seconds of one try, without the wait for its turn."),
    _gauge("assay_api_limit", "profile limit", "The limits in force: `rpm`, `tpm`, `concurrency`; 0: none."),
    _gauge("assay_api_ceiling", "profile", "Calls in flight that are allowed now, as the API's 429s have taught."),
    _gauge("assay_api_in_flight", "profile", "Calls in flight, of all processes."),
    _gauge("assay_api_waiting", "profile", "Calls that wait for their turn."),
    _gauge("assay_api_circuit_open", "profile", "1 while the API is let alone, as it failed too often."),
    # Rollouts and policies.
    _gauge("assay_rollouts", "", "Rollouts that have not ended."),
    _gauge("assay_rollout_samples", "state", "Samples of all rollouts: `queued`, `leased`, and `under_way`."),
    _counter("assay_rollout_sample_events", "event", "Samples `put`, `acknowledged`, `returned`, `dropped` as stale."),
    _gauge("assay_rollout_sample_age_versions", "", "Mean age of the last batch, in versions; worst rollout."),
    _gauge("assay_rollout_sample_age_seconds", "", "The same in seconds since they were put."),
    _gauge("assay_policy_servers", "state", "Policy servers: `free`, `busy`, `away`."),
    _counter("assay_policy_calls", "server", "Calls of a policy server by the process that is connected to it."),
    _counter("assay_policy_errors", "server", "Calls of those that failed."),
    # Benchmarks.
    _gauge("assay_benchmark_regressions", "", "Figures whose last run, within a month, is worse than noise explains."),
    _gauge("assay_benchmark_last_run_seconds", "benchmark", "When it was last run to the end, since 1970."),
    # HTTP.
    _counter("assay_http_requests", "route method status", "Requests by route and class of status (`2xx`)."),
    _histogram("assay_http_request_seconds", "route", "Seconds until the answer began."),
)  # fmt: skip

BY_NAME = {metric.name: metric for metric in METRICS}

_BEGIN, _END = "<!-- metrics: begin -->", "<!-- metrics: end -->"


def table() -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.sample}` | {metric.type} | {labels} | {metric.meaning} |")
    return "\n".join(lines)


def rewritten(page: str) -> str:
    """The page with its table as it should be."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{table()}\n{_END}{after}"


def main(argv: Sequence[str]) -> None:
    if len(argv) == 2 and argv[0] == "--write":
        page = Path(argv[1])
        page.write_text(rewritten(page.read_text()))
    else:
        print(table())


if __name__ == "__main__":
    main(sys.argv[1:])
