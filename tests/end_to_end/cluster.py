"""A cluster of three hosts in network namespaces: `web` has Redis, the web process and an S3 server, the other two have
workers."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from assay import Assay, Job
from redis import Redis

from bench.soak import leaks
from bench.soak.findings import Expected, JobResult, wrong_outcomes, wrong_scores
from config import keys
from tasks.counters import Totals
from tasks.simulated.model import SimulatedItem
from tasks.simulated.stages import score
from tasks.worker_registry import Registry
from tests.support.network import Host, Network
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, Program, wait_until
from tests.support.redis_server import RedisServer
from tests.support.s3_server import S3Server

BUCKET = "assay"
PASSWORD = "password-of-the-test"
#: TTL of a heartbeat. Long enough for a worker on a busy machine to keep its name.
HEARTBEAT_TTL_S = 4.0
#: Jobs with more items than this are kept in the bucket.
STORED_ITEMS = 300
#: Launched on each worker host: a device slot, an API worker and a CPU worker.
POOLS = ("device", "api", "cpu")
#: Keys that may remain in the state Redis after every job was removed.
ALLOWED_KEYS = (
    *leaks.STATE_KEYS,
    leaks.AllowedKey(keys.token_usage("*", "*"), "usage of a token on a day; expires after 100 days"),
    leaks.AllowedKey(
        "gpu.*", "messages for the killed host, with ids only; without effect if it returns", expires=False
    ),
)


@dataclass(frozen=True)
class Submitted:
    name: str
    job: Job
    expected: Sequence[Expected]


class Cluster:
    """Use as `with Cluster.started(run, tmp_path) as cluster:`. The test's thread is on the host `web` meanwhile."""

    def __init__(self, run: Callable[..., Program], network: Network, folder: Path, state: RedisServer) -> None:
        self._run = run
        self._folder = folder
        self._web = network["web"]
        self.workers = [network["worker1"], network["worker2"]]
        self.state: Redis = state.client()
        self._registry = Registry(self.state, HEARTBEAT_TTL_S)
        self._numbers = count()
        self.submitted: list[Submitted] = []
        self._programs: dict[str, Program] = {}
        self.s3 = S3Server(run, self._web.address)
        self.s3.create_bucket(BUCKET)
        self._environment = self.s3.environment | {
            "ASSAY_REDIS_URL": state.url,
            "ASSAY_STORAGE_URL": f"s3://{BUCKET}/production",
            "ASSAY_STORED_ITEMS": str(STORED_ITEMS),
            "ASSAY_HEARTBEAT_S": "0.5",
            "ASSAY_HEARTBEAT_TTL_S": str(HEARTBEAT_TTL_S),
        }

    @classmethod
    @contextmanager
    def started(cls, run: Callable[..., Program], folder: Path) -> Iterator["Cluster"]:
        with Network("web", "worker1", "worker2") as network, network["web"].entered():
            address = network["web"].address
            with (
                RedisServer(folder / "state", address=address, password=PASSWORD) as state,
                RedisServer(folder / "cache", "cache", address=address, password=PASSWORD) as cache,
            ):
                cluster = cls(run, network, folder, state)
                cluster._environment["ASSAY_CACHE_URL"] = cache.url
                with cluster._serve() as client:
                    cluster.client = client
                    for host in cluster.workers:
                        cluster.launch(host)
                    for host in cluster.workers:
                        cluster.wait_for_workers(host)
                    yield cluster
                cluster.state.close()

    client: Assay

    def _serve(self) -> Assay:
        """Start the web process, which beyond loopback requires a token, and return a client of it."""
        tokens = self._folder / "tokens.jsonl"
        adding = self._run("python", "-m", "web.tokens", "add", "trainer", ASSAY_TOKENS_FILE=str(tokens))
        token = adding.wait_for(r"assay_\S+")[0]
        port = free_port()
        own = {"ASSAY_HOST": self._web.address, "ASSAY_PORT": str(port), "ASSAY_TOKENS_FILE": str(tokens)}
        argv = ("gunicorn", "--config", "web/gunicorn_config.py", "web.wsgi:app")
        self._programs["web"] = self._run(*argv, **self._environment | own)
        client = Assay(f"http://{self._web.address}:{port}", token)
        client.jobs(limit=1)  # waits until the server answers
        return client

    def launch(self, host: Host) -> None:
        """Start what runs on a worker host: a launcher per pool, and a judge API on its loopback interface."""
        environment = self._environment | {
            "ASSAY_NODE": host.name,
            "ASSAY_SLOTS": "cpu:1",
            "ASSAY_API_WORKERS_MAX": "1",
            "ASSAY_CPU_WORKERS_MAX": "1",
            "ASSAY_DATA_DIR": str(self._folder / host.name),
        }
        judge = ("-m", "workers.development_api", "--latency-ms", "100")
        self._programs[f"{host.name} judge"] = host.start(self._run, sys.executable, *judge, **environment)
        for pool in POOLS:
            argv = (sys.executable, "-m", "workers.launch", pool)
            self._programs[f"{host.name} {pool}"] = host.start(self._run, *argv, **environment)

    # --- hosts ---

    def wait_for_workers(self, host: Host, number: int = len(POOLS)) -> None:
        """Wait until the cluster knows this number of ready workers of a host."""

        def look() -> bool:
            found = [worker for worker in self._registry.workers() if worker.node == host.name]
            return len(found) == number and all(worker.state == "ready" for worker in found)

        wait_until(look, lambda: f"{number} workers of {host.name} are ready\n{self.describe()}")

    def work_until_it_holds(self, host: Host, device_items: int) -> None:
        """Submit jobs, one after the other, until the device worker of a host holds a chunk."""

        def look() -> bool:
            if not self.submitted or self.submitted[-1].job.refresh().ended:
                self.submit(device_items)
            return "device" in self.held_by(host)

        wait_until(look, lambda: f"{host.name} holds a chunk\n{self.describe()}")

    def wait_until_it_holds_nothing(self, host: Host) -> None:
        wait_until(lambda: not self.held_by(host), lambda: f"chunks of {host.name} are back\n{self.describe()}")

    def held_by(self, host: Host) -> list[str]:
        """Return the pools of the host's workers that hold chunks."""
        holders = [str(holder).split("/")[0].split(".") for holder in self.state.smembers(keys.holders())]
        return ["device" if prefix == "gpu" else prefix for prefix, node, _ in holders if node == host.name]

    # --- jobs ---

    def submit(self, device_items: int) -> list[Submitted]:
        """Submit a job to each pool: some items to API and CPU workers, then this number of items to the devices."""
        first = next(self._numbers) * 1_000_000
        numbers = range(first, first + device_items)
        simulated = [{"id": str(n), "x": n} for n in numbers]
        judged = [{"id": f"j{n}", "prompt": "?", "response": f"It is {n}.", "reference": str(n)} for n in numbers[:60]]
        scored = [{"id": f"s{n}", "response": f"It is {n}.", "reference": str(n + n % 2)} for n in numbers[:400]]
        found = [
            self._submit(
                judged,
                [Expected(item["id"], score=10.0) for item in judged],
                "judge",
                {"profile": "development", "mode": "reference"},
            ),
            self._submit(
                scored,
                [Expected(f"s{n}", score=1.0 - n % 2) for n in numbers[:400]],
                "score",
                {"scorers": [{"name": "numeric_match"}]},
            ),
            self._submit(
                simulated,
                [Expected(str(n), score=score(SimulatedItem(x=n))) for n in numbers],
                "simulated",
                {"cost_s": 0.005, "batch_items": 25},
            ),
        ]
        self.submitted += found
        return found

    def _submit(
        self, items: list[dict[str, Any]], expected: list[Expected], kind: str, spec: dict[str, Any]
    ) -> Submitted:
        return Submitted(kind, self.client.submit(kind, items, spec), expected)

    def finish(self) -> None:
        """Wait for the end of every job, and check that each item has exactly one outcome, with the right score."""
        for each in self.submitted:
            self._wait(each.job)
            view = each.job.view
            rows = [row.raw for row in each.job.results()]
            total = view.total or 0
            result = JobResult(view.id, each.name, view.state, view.reason, total, view.ok, view.failed, rows)
            assert wrong_outcomes(result, each.expected) == []
            assert wrong_scores(result, each.expected) == []
        counted = {kind: number for (kind, status), number in Totals.read(self.state).of("items") if status == "ok"}
        accepted = Counter({each.name: 0 for each in self.submitted})
        for each in self.submitted:
            accepted[each.name] += len(each.expected)
        assert counted == accepted, "the cluster's counters count each item once"

    def _wait(self, job: Job) -> None:
        try:
            job.wait(3 * PATIENCE_S, raise_on_failure=False)
        except Exception as error:
            raise AssertionError(f"{error!r}: {job.view}\n{self.describe()}") from error

    def remove_jobs(self) -> None:
        """Remove every job, and check that nothing of them is left in Redis and in the bucket."""
        for each in self.submitted:
            each.job.purge()

        def left() -> list[str]:
            leaks.expire_staging(self.state)
            found = leaks.unexpected_keys(leaks.keys_with_ttl(self.state), ALLOWED_KEYS)
            return found + leaks.loads_left(self.state) + self.s3.files(BUCKET)

        wait_until(lambda: not left(), lambda: f"nothing of the jobs is left, but there is {left()}")

    def describe(self) -> str:
        """Return the ends of the logs, to find out why a test fails."""
        return "\n".join(f"--- {name}\n{program.output[-2500:]}" for name, program in self._programs.items())
