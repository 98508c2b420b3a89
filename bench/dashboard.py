"""The job list and the overview with 10,000 jobs and with 100: `python -m bench.dashboard`. Takes two minutes."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from statistics import median

from bench.http import Client, gunicorn, show
from bench.spread import brief
from bench.stack import Stack, stack
from config import keys
from web.app import create_app
from web.dashboard.snapshot import Snapshots
from web.services import services

FEW, MANY = 100, 10_000
ROUNDS, REQUESTS = 7, 60
#: A page as the dashboard asks for it; and one with a filter that nothing passes, which looks at the most jobs.
PLAIN, FILTERED = "/v1/jobs?limit=50", "/v1/jobs?limit=50&state=failed"


def fill(stand: Stack, jobs: int) -> None:
    """Jobs that are done: all but the first have their answer from the cache."""
    item, spec = [{"x": 1}], {"cacheable": True}
    with stand.workers(1):
        stand.run(item, spec=spec)
    while stand.core.state.zcard(keys.jobs()) < jobs:
        stand.submit(item, spec=spec)


def ratios(few: Callable[[], float], many: Callable[[], float]) -> list[float]:
    """One for each round; the first one warms up. By turns: what else runs on the machine slows both."""
    found = []
    for _ in range(brief(ROUNDS) + 1):
        pairs = [(few(), many()) for _ in range(REQUESTS)]
        one, other = (median(pair[side] for pair in pairs) for side in (0, 1))
        found.append(other / one)
    print(f"  {1000 * other:.2f} ms over {1000 * one:.2f} ms in the last round")
    return found[1:]


def snapshot(stand: Stack) -> Callable[[], float]:
    """What the overview is made of, without the second and a half for which one is kept."""
    app = create_app(stand.settings)

    def take() -> float:
        with app.app_context():
            started = time.perf_counter()
            Snapshots().take(services())  # a new one counts the recent jobs, too
            return time.perf_counter() - started

    return take


def main() -> None:
    with ExitStack() as stands:
        few, many = (stands.enter_context(stack()) for _ in range(2))
        fill(few, FEW)
        fill(many, brief(MANY, 500))
        with gunicorn(few) as (one, _), gunicorn(many) as (other, _):
            plain, read = partial(Client(one).seconds_to_read, PLAIN), Client(other).seconds_to_read
            show("the job list, 10,000 jobs over 100", ratios(plain, partial(read, PLAIN)), "<= 2")
            show("the same, with a filter that none passes", ratios(plain, partial(read, FILTERED)), "<= 2")
        show("the overview, 10,000 jobs over 100", ratios(snapshot(few), snapshot(many)), "<= 2")


if __name__ == "__main__":
    main()
