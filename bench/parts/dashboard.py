"""Benchmark of the dashboard: response times of the job list and the overview with 10,000 jobs, compared with 100.

`python -m bench dashboard`; takes two minutes.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median

from bench.parts.http import Client, gunicorn, show
from bench.processes.stack import Stack, running_stack
from bench.report.figures import brief
from config import keys
from web.app import create_app
from web.overview.snapshot import SnapshotBuilder
from web.services import services

FEW, MANY = 100, 10_000
ROUNDS, REQUESTS = 7, 60
#: The dashboard's request for a page, and a request whose filter matches no job, so that it scans the most jobs.
PLAIN, FILTERED = "/v1/jobs?limit=50", "/v1/jobs?limit=50&state=failed"


def add_jobs(stack: Stack, jobs: int) -> None:
    """Submit jobs until `jobs` have finished: the first is computed, and the cache answers the rest."""
    item, spec = [{"x": 1}], {"cacheable": True}
    with stack.workers(1):
        stack.run(item, spec=spec)
    while stack.core.state.zcard(keys.jobs()) < jobs:
        stack.submit(item, spec=spec)


def ratios(few: Callable[[], float], many: Callable[[], float]) -> list[float]:
    """Return the ratio of the median durations, for each round after the warm-up round.

    The two calls alternate, so that other load on the machine slows both equally."""
    found = []
    for _ in range(brief(ROUNDS) + 1):
        pairs = [(few(), many()) for _ in range(REQUESTS)]
        one, other = (median(pair[side] for pair in pairs) for side in (0, 1))
        found.append(other / one)
    print(f"  {1000 * other:.2f} ms over {1000 * one:.2f} ms in the last round")
    return found[1:]


def snapshot(stack: Stack) -> Callable[[], float]:
    """Return a function that times a snapshot of the overview, bypassing its cache of 1.5 seconds."""
    app = create_app(stack.settings)

    def take() -> float:
        with app.app_context():
            started = time.perf_counter()
            SnapshotBuilder().build(services())  # a new instance counts the recent jobs again
            return time.perf_counter() - started

    return take


def main() -> None:
    with ExitStack() as stacks:
        few, many = (stacks.enter_context(running_stack()) for _ in range(2))
        add_jobs(few, FEW)
        add_jobs(many, brief(MANY, 500))
        with gunicorn(few) as (one, _), gunicorn(many) as (other, _):
            plain, read = partial(Client(one).seconds_to_read, PLAIN), Client(other).seconds_to_read
            show("the job list, 10,000 jobs over 100", ratios(plain, partial(read, PLAIN)), "<= 2")
            show(
                "the job list with a filter that no job matches, 10,000 over 100",
                ratios(plain, partial(read, FILTERED)),
                "<= 2",
            )
        show("the overview, 10,000 jobs over 100", ratios(snapshot(few), snapshot(many)), "<= 2")


if __name__ == "__main__":
    main()
