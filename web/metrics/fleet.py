"""Workers, their devices and policy servers, from their heartbeats; and outside APIs."""

from collections import Counter
from typing import get_args

from config.queues import API, CPU
from tasks.apis.board import Board
from tasks.registry import Pool, Registry, State
from web.metrics.collector import Samples

MB = 1 << 20


class Fleet:
    """A source each: `workers`, `apis`."""

    def __init__(self, registry: Registry, board: Board) -> None:
        self._registry = registry
        self._board = board

    def workers(self, samples: Samples) -> None:
        workers = self._registry.workers()
        present = Counter((each.pool, each.state) for each in workers)
        for pool in get_args(Pool):  # none is a number too: alerts ask for it
            for state in get_args(State):
                samples.add("assay_workers", present[pool, state], pool, state)
        readers = Counter({API: 0, CPU: 0})
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
                if server.elsewhere:  # told by the process that has it
                    continue
                servers.append("busy" if server.busy else "free" if server.connected else "away")
                samples.add("assay_policy_calls", server.calls, f"{each.name} {server.url}")
                samples.add("assay_policy_errors", server.errors, f"{each.name} {server.url}")
        for queue, number in readers.items():
            samples.add("assay_queue_readers", number, queue)
        states = Counter(servers)
        for name in ("free", "busy", "away"):
            samples.add("assay_policy_servers", states[name], name)

    def apis(self, samples: Samples) -> None:
        for view in self._board.views():
            profile = view["name"]
            for limit, value in view["limits"].items():
                samples.add("assay_api_limit", value or 0, profile, limit)
            samples.add("assay_api_ceiling", view["ceiling"], profile)
            samples.add("assay_api_in_flight", view["in_flight"], profile)
            samples.add("assay_api_waiting", view["waiting"], profile)
            samples.add("assay_api_circuit_open", view["circuit"]["state"] != "closed", profile)
