"""Catalogue of every metric: name, type, labels and meaning. A metric that is not listed here raises an error.

`python -m web.metrics.catalogue` prints the table of docs/metrics.md; `make docs` writes the page.
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
    """Name without `_total`, the suffix of a counter's samples."""
    type: Type
    labels: tuple[str, ...]
    meaning: str

    @property
    def sample(self) -> str:
        """Name of its samples, as used in a query."""
        return f"{self.name}_total" if self.type == "counter" else self.name


def _gauge(name: str, labels: str, meaning: str) -> Metric:
    return Metric(name, "gauge", tuple(labels.split()), meaning)


def _counter(name: str, labels: str, meaning: str) -> Metric:
    return Metric(name, "counter", tuple(labels.split()), meaning)


def _histogram(name: str, labels: str, meaning: str) -> Metric:
    return Metric(name, "histogram", tuple(labels.split()), meaning)


METRICS = (
    # The system.
    _gauge("assay_build_info", "version python", "Always 1; the labels hold the versions of the web process."),
    _gauge(
        "assay_redis_up", "role", "1 while this Redis (`state`, `cache`) is reachable. At 0 its metrics are omitted."
    ),
    _gauge("assay_redis_memory_bytes", "role", "Memory used by Redis."),
    _gauge("assay_redis_memory_limit_bytes", "role", "Memory limit (`maxmemory`); 0: no limit."),
    _gauge("assay_cache_keys", "", "Keys in the cache Redis, which may hold more than answers."),
    _gauge(
        "assay_storage_faults", "access", "Hosts on which the storage of large jobs cannot be `read` or `written` now."
    ),
    # Jobs and items.
    _counter("assay_jobs_submitted", "kind", "Accepted jobs."),
    _counter("assay_jobs_ended", "kind state", "Ended jobs: `done`, `failed`, `cancelled`."),
    _gauge("assay_jobs_active", "", "Jobs that have not ended."),
    _histogram("assay_job_seconds", "kind", "Seconds from a job's submit to its end."),
    _counter("assay_items", "kind status", "Settled items: `ok`, `failed`, `unfinished` (their job ended first)."),
    _counter("assay_items_cached", "kind", "Settled items that came from the cache, which saved work or calls."),
    _counter("assay_item_errors", "type", "Failed items by error type."),
    _counter("assay_item_retries", "kind", "Retries of items."),
    _counter("assay_work_items", "kind pool", "Items processed by workers, counted per stage; `policy`: episodes."),
    _counter("assay_work_seconds", "kind pool", "Seconds that workers spent on items."),
    # Queues and pools.
    _gauge("assay_queue_chunks", "queue state", "Chunks on a queue: `waiting` for a worker, or `running`."),
    _gauge("assay_queue_oldest_seconds", "queue", "Age of the oldest waiting chunk in seconds; 0: no chunk waits."),
    _gauge("assay_queue_held", "queue", "1 while the queue is paused or draining."),
    _gauge("assay_queue_readers", "queue", "Concurrency of its live workers; 0: no worker reads it."),
    _gauge("assay_running_items", "queue kind", "Items of the running chunks; for policies: episodes."),
    _gauge("assay_pool_waiting_items", "pool priority", "Items that are not in a chunk yet; `policy`: episodes."),
    _gauge("assay_pool_waiting_jobs", "pool priority", "Jobs with items that are not in a chunk yet."),
    _gauge("assay_pool_waiting_seconds", "pool", "Longest time in seconds for which a waiting job got no chunk."),
    _counter("assay_chunks_dispatched", "", "Dispatched chunks."),
    _counter("assay_chunks_recovered", "", "Chunks recovered from processes that died or stopped their heartbeat."),
    _counter(
        "assay_items_repaired", "kind", "Items that an audit found in no place and made pending again: report it."
    ),
    _counter("assay_processes_lost", "proof", "Processes lost while they held chunks: `seen` to end, or `silent`."),
    # Workers and devices.
    _gauge("assay_workers", "pool state", "Live workers."),
    _gauge("assay_worker_tasks", "worker pool", "Tasks in progress."),
    _counter("assay_worker_busy_seconds", "worker pool", "Busy seconds; the rate is the busy share."),
    _counter("assay_worker_cpu_seconds", "worker pool", "CPU seconds of its processes."),
    _gauge("assay_worker_memory_bytes", "worker pool", "Resident memory of its processes."),
    _gauge("assay_gpu_utilisation", "worker gpu", "Share of the last sample period in which the GPU was busy, 0 to 1."),
    _gauge("assay_gpu_memory_used_bytes", "worker gpu", "Used memory of the GPU, by any process."),
    _gauge("assay_gpu_memory_total_bytes", "worker gpu", "Total memory of the GPU."),
    # Outside APIs.
    _counter(
        "assay_api_calls",
        "profile outcome",
        "Calls, each retry included: `answered`, `limited` (429), `failed` (5xx, no answer).",
    ),
    _counter("assay_api_tokens", "profile direction", "Tokens counted by the API: `prompt`, `completion`."),
    _counter("assay_api_cost", "profile currency", "Cost of the calls, by the profile's prices."),
    _histogram("assay_api_call_seconds", "profile", "Seconds per call, without the wait for a permit."),
    _gauge("assay_api_limit", "profile limit", "Current limits: `rpm`, `tpm`, `concurrency`; 0: no limit."),
    _gauge("assay_api_ceiling", "profile", "Calls in flight allowed now, adapted to the API's 429 responses."),
    _gauge("assay_api_in_flight", "profile", "Calls in flight of every process together."),
    _gauge("assay_api_waiting", "profile", "Calls that wait for a permit."),
    _gauge("assay_api_circuit_open", "profile", "1 while the circuit is open after repeated failures."),
    # Rollouts and policies.
    _gauge("assay_rollouts", "", "Rollouts that have not ended."),
    _gauge("assay_rollout_samples", "state", "Samples of every rollout: `queued`, `leased`, and `under_way`."),
    _counter(
        "assay_rollout_sample_events",
        "event",
        "Samples `put`, `acknowledged`, `returned`, `dropped` as stale, `lost`.",
    ),
    _gauge("assay_rollout_sample_age_versions", "", "Mean age of the last batch in versions; maximum over rollouts."),
    _gauge(
        "assay_rollout_sample_age_seconds",
        "",
        "Mean age of the last batch in seconds since the put; maximum over rollouts.",
    ),
    _gauge("assay_policy_servers", "state", "Policy servers: `free`, `busy`, `away`."),
    _counter("assay_policy_calls", "server", "Calls of a policy server by the process connected to it."),
    _counter("assay_policy_errors", "server", "Failed calls of a policy server."),
    # Benchmarks.
    _gauge(
        "assay_benchmark_regressions", "", "Figures with a last run, within a month, that is worse than noise explains."
    ),
    _gauge("assay_benchmark_last_run_seconds", "benchmark", "Unix time of its last completed run."),
    # HTTP.
    _counter("assay_http_requests", "route method status", "Requests by route and status class (`2xx`)."),
    _histogram("assay_http_request_seconds", "route", "Seconds until the response began."),
)

BY_NAME = {metric.name: metric for metric in METRICS}

_BEGIN, _END = "<!-- metrics: begin -->", "<!-- metrics: end -->"


def table() -> str:
    lines = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.sample}` | {metric.type} | {labels} | {metric.meaning} |")
    return "\n".join(lines)


def rewritten(page: str) -> str:
    """Return the page with its table rewritten from the catalogue."""
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
