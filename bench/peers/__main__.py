"""`python -m bench.peers`: Assay beside what people use instead. Takes about fifteen minutes; `make peers` runs it."""

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from bench.peers.kill import kill_halfway
from bench.peers.peer import Place
from bench.peers.registry import GENERATORS, JUDGES, PEERS
from bench.peers.rows import TOKENS
from bench.peers.speed import Course
from bench.peers.table import Report, Row
from bench.peers.witness import ApiCounts, Journal
from bench.spread import brief
from bench.stack import redis_server
from config.settings import load_settings
from workers.development_api.handle import running
from workers.engines import default_models
from workers.engines.default_models import SMOLLM2

PARTS = ("speed", "kill")
#: One row at a time on each of two slots. Few single rows, as each takes a second.
SLOTS, SINGLE_ROWS, SINGLE_ITEMS = 2, 3, 10


def main() -> int:
    arguments = _parser().parse_args()
    report = Report(arguments.output)
    with tempfile.TemporaryDirectory() as name, redis_server(Path(name)) as (url, redis_pid):
        folder = Path(name)
        if judges := _chosen(arguments.peers, list(JUDGES), report):
            with running(latency_ms=arguments.latency_ms) as api:
                place = Place(api.url, url, folder, arguments.in_flight)
                course = Course(
                    place, ApiCounts(api), redis_pid, arguments.items, arguments.repeated, singles=SINGLE_ITEMS
                )
                report.conditions.append(
                    f"Judging: {arguments.items:,} items, {arguments.repeated:.0%} of them repetitions, none for the "
                    f"kill; {arguments.in_flight} calls in flight, an API that takes {arguments.latency_ms} ms; "
                    f"rounds: {arguments.rounds}"
                )
                _compare(judges, course, report, arguments.rounds, arguments.parts)
        if generators := _chosen(arguments.peers, list(GENERATORS), report):
            _prepare_models(folder)
            course = Course(
                Place("", url, folder, SLOTS), Journal(folder), redis_pid, arguments.rows, 0.0, singles=SINGLE_ROWS
            )
            report.conditions.append(
                f"Inference: {arguments.rows} rows, {TOKENS} new tokens each, SmolLM2-135M in fp32 on the CPU; "
                f"rounds: {arguments.rounds}"
            )
            _compare(generators, course, report, arguments.rounds, arguments.parts)
    print(report.as_markdown())
    return 1 if report.failed else 0


def _compare(names: list[str], course: Course, report: Report, rounds: int, parts: list[str]) -> None:
    """Round by round, so that what else the machine does touches all of them."""
    rows = {name: Row(PEERS[name].title) for name in names}
    report.rows |= rows
    for number in range(rounds if "speed" in parts else 0):
        for name in names:
            with alone(name, f"round {number + 1} of {rounds}", course, report):
                course.run_round(name, rows[name].speed, number)
    for name in names if "kill" in parts else ():
        with alone(name, "kill -9", course, report):
            rows[name].damage = kill_halfway(name, course.place, course.witness, course.number)


@contextmanager
def alone(name: str, what: str, course: Course, report: Report) -> Iterator[None]:
    """One peer on an empty Redis. If it fails that is told, and the others go on; the report is written as it comes."""
    print(f"  {what}: {name}", file=sys.stderr, flush=True)
    with Redis.from_url(course.place.redis_url) as redis:
        redis.flushall()
    try:
        yield
    except Exception as error:  # noqa: BLE001  # told in the report, and in the exit code
        traceback.print_exc()
        report.failed.append(f"{PEERS[name].title}, {what}: {type(error).__name__}: {str(error)[:200]}")
    report.write()


def _prepare_models(folder: Path) -> None:
    """Where the peers find SmolLM2: as a directory, and by name."""
    places = default_models.prepare(load_settings().data_dir)
    default_models.link(folder / "models", places)
    os.environ |= {"BENCH_MODEL": str(places[SMOLLM2]), "BENCH_MODELS_DIR": str(folder / "models")}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description="Assay beside what people use instead: the same questions to the same development API on the same "
        "Redis, one peer after the other, round by round. Prints one table; docs/performance.md explains it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), metavar="PEER",
                        help=f"which: {', '.join(PEERS)}")  # fmt: skip
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART",
                        help="speed (throughput, latency, CPU, memory, calls), kill (a kill -9 halfway)")  # fmt: skip
    parser.add_argument("--items", type=int, default=brief(1000, 100), help="items of a run")
    parser.add_argument("--rows", type=int, default=brief(16, 4), help="rows of an inference run")
    parser.add_argument("--repeated", type=float, default=0.2, help="share of them that repeats others; not for kill")
    parser.add_argument("--in-flight", type=int, default=64, help="calls in flight, for every peer")
    parser.add_argument("--latency-ms", type=int, default=200, help="of the development API")
    parser.add_argument("--rounds", type=int, default=brief(3), help="of speed; the table has their median and range")
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the table to FILE.md and FILE.json")
    return parser


def _chosen(wanted: list[str], names: list[str], report: Report) -> list[str]:
    for name in names:
        if name in wanted and not PEERS[name].is_installed:
            report.skipped[name] = "its package is not installed: requirements/peers.txt has it"
    return [name for name in names if name in wanted and name not in report.skipped]


if __name__ == "__main__":
    sys.exit(main())
