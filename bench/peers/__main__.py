"""Command `python -m bench.peers` (`make peers`): compares Assay with alternative tools.

Takes about fifteen minutes.
"""

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from bench.peers.adapters.peer import PeerSetup
from bench.peers.adapters.registry import GENERATORS, JUDGES, PEERS
from bench.peers.call_counters import ApiCounts, Journal
from bench.peers.kill import kill_halfway
from bench.peers.report import Report, Row
from bench.peers.speed import SpeedTest
from bench.peers.workload.inference_rows import TOKENS
from bench.processes.stack import redis_server
from bench.report.figures import brief
from config.settings import load_settings
from workers.development_api.control import running
from workers.engines import default_models
from workers.engines.default_models import SMOLLM2

PARTS = ("speed", "kill")
#: Two slots that process a row at a time; and the number of requests that are timed singly: few rows, as each takes a
#: second.
SLOTS, SINGLE_ROWS, SINGLE_ITEMS = 2, 3, 10


def main() -> int:
    arguments = _parser().parse_args()
    report = Report(arguments.output)
    with tempfile.TemporaryDirectory() as name, redis_server(Path(name)) as (url, redis_pid):
        folder = Path(name)
        if judges := _chosen(arguments.peers, list(JUDGES), report):
            with running(latency_ms=arguments.latency_ms) as api:
                setup = PeerSetup(api.url, url, folder, arguments.in_flight)
                speed_test = SpeedTest(
                    setup, ApiCounts(api), redis_pid, arguments.items, arguments.repeated, singles=SINGLE_ITEMS
                )
                report.conditions.append(
                    f"Judging: {arguments.items:,} items, {arguments.repeated:.0%} of them repetitions (0% in the kill "
                    f"test); {arguments.in_flight} calls in flight, API latency {arguments.latency_ms} ms; "
                    f"rounds: {arguments.rounds}"
                )
                _compare(judges, speed_test, report, arguments.rounds, arguments.parts)
        if generators := _chosen(arguments.peers, list(GENERATORS), report):
            _prepare_models(folder)
            speed_test = SpeedTest(
                PeerSetup("", url, folder, SLOTS), Journal(folder), redis_pid, arguments.rows, 0.0, singles=SINGLE_ROWS
            )
            report.conditions.append(
                f"Inference: {arguments.rows} rows, {TOKENS} new tokens each, SmolLM2-135M in fp32 on the CPU; "
                f"rounds: {arguments.rounds}"
            )
            _compare(generators, speed_test, report, arguments.rounds, arguments.parts)
    print(report.as_markdown())
    return 1 if report.failed else 0


def _compare(names: list[str], speed_test: SpeedTest, report: Report, rounds: int, parts: list[str]) -> None:
    """Run the peers in alternating rounds, so that other load on the machine affects them equally."""
    rows = {name: Row(PEERS[name].title) for name in names}
    report.rows |= rows
    for number in range(rounds if "speed" in parts else 0):
        for name in names:
            with isolated(name, f"round {number + 1} of {rounds}", speed_test, report):
                speed_test.run_round(name, rows[name].speed, number)
    for name in names if "kill" in parts else ():
        with isolated(name, "kill -9", speed_test, report):
            rows[name].kill = kill_halfway(name, speed_test.setup, speed_test.counter, speed_test.number)


@contextmanager
def isolated(name: str, phase: str, speed_test: SpeedTest, report: Report) -> Iterator[None]:
    """Run a peer on an empty Redis. A failure is recorded in the report, and the run continues; then write the
    report."""
    print(f"  {phase}: {name}", file=sys.stderr, flush=True)
    with Redis.from_url(speed_test.setup.redis_url) as redis:
        redis.flushall()
    try:
        yield
    except Exception as error:  # noqa: BLE001  # recorded in the report and in the exit code
        traceback.print_exc()
        report.failed.append(f"{PEERS[name].title}, {phase}: {type(error).__name__}: {str(error)[:200]}")
    report.write()


def _prepare_models(folder: Path) -> None:
    """Install SmolLM2 and pass its location to the peers, as a directory and by name."""
    places = default_models.prepare(load_settings().data_dir)
    default_models.link(folder / "models", places)
    os.environ |= {"BENCH_MODEL": str(places[SMOLLM2]), "BENCH_MODELS_DIR": str(folder / "models")}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description="Compare Assay with alternative tools: the same prompts to the same development API on the same "
        "Redis, sequentially, in rounds. Prints a table; docs/performance.md explains it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    names = ", ".join(PEERS)
    parser.add_argument(
        "--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER", help=f"peers to run: {names}"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=PARTS,
        default=list(PARTS),
        metavar="PART",
        help="speed (throughput, latency, CPU, memory, calls), kill (a kill -9 halfway)",
    )
    parser.add_argument("--items", type=int, default=brief(1000, 100), help="items in a run")
    parser.add_argument("--rows", type=int, default=brief(16, 4), help="rows in an inference run")
    parser.add_argument("--repeated", type=float, default=0.2, help="share of repeated items; 0 in the kill test")
    parser.add_argument("--in-flight", type=int, default=64, help="calls in flight, for every peer")
    parser.add_argument("--latency-ms", type=int, default=200, help="latency of the development API")
    parser.add_argument(
        "--rounds", type=int, default=brief(3), help="rounds of the speed test; the table has their median and range"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the table to FILE.md and FILE.json")
    return parser


def _chosen(requested: list[str], names: list[str], report: Report) -> list[str]:
    for name in names:
        if name in requested and not PEERS[name].is_installed:
            report.skipped[name] = "package not installed, see requirements/peers.txt"
    return [name for name in names if name in requested and name not in report.skipped]


if __name__ == "__main__":
    sys.exit(main())
