"""Metrics of workers, devices and policy servers, from their heartbeats; and of outside APIs."""

from collections import Counter
from typing import get_args

from config.pools import POOLS, WORKER_POOLS
from tasks.providers.profile_status import ProfileStatuses
from tasks.worker_registry import Registry, State
from web.metrics.collector import Scrape

MB = 1 << 20


class FleetMetrics:
    """Two sources: `workers` and `apis`."""

    def __init__(self, registry: Registry, board: ProfileStatuses) -> None:
        self._registry = registry
        self._board = board

    def workers(self, samples: Scrape) -> None:
        workers = self._registry.workers()
        present = Counter((each.pool, each.state) for each in workers)
        for pool in WORKER_POOLS:  # zero is reported too: alerts need it
            for state in get_args(State):
                samples.add("assay_workers", present[pool, state], pool, state)
        # A queue without readers is reported too; that of benchmarks has none most of the time.
        readers = Counter({pool.name: 0 for pool in POOLS.values() if pool.is_required and pool.queues == "shared"})
        servers: list[str] = []
        for each in workers:
            for queue in each.queues:
                readers[queue] += each.concurrency if each.state != "stopping" else 0
            own = (each.name, each.pool)
            samples.add("assay_worker_tasks", each.active, *own)
            samples.add("assay_worker_busy_seconds", each.busy_s, *own)
            samples.add("assay_worker_cpu_seconds", each.cpu_s, *own)
            samples.add("assay_worker_memory_bytes", each.memory_mb * MB, *own)
            for gpu in each.gpus:
                if gpu.utilisation is not None:
                    samples.add("assay_gpu_utilisation", gpu.utilisation, each.name, gpu.uuid)
                samples.add("assay_gpu_memory_used_bytes", gpu.memory_used_mb * MB, each.name, gpu.uuid)
                samples.add("assay_gpu_memory_total_bytes", gpu.memory_total_mb * MB, each.name, gpu.uuid)
            for server in each.policies:
                if server.elsewhere:  # reported by the process that owns it
                    continue
                servers.append("busy" if server.busy else "free" if server.connected else "away")
                samples.add("assay_policy_calls", server.calls, f"{each.name} {server.url}")
                samples.add("assay_policy_errors", server.errors, f"{each.name} {server.url}")
        for queue, number in readers.items():
            samples.add("assay_queue_readers", number, queue)
        states = Counter(servers)
        for name in ("free", "busy", "away"):
            samples.add("assay_policy_servers", states[name], name)

    def apis(self, samples: Scrape) -> None:
        for view in self._board.views():
            profile = view["name"]
            for limit, value in view["limits"].items():
                samples.add("assay_api_limit", value or 0, profile, limit)
            samples.add("assay_api_ceiling", view["ceiling"], profile)
            samples.add("assay_api_in_flight", view["in_flight"], profile)
            samples.add("assay_api_waiting", view["waiting"], profile)
            samples.add("assay_api_circuit_open", view["circuit"]["state"] != "closed", profile)
