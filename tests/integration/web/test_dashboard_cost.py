"""Cost of a page view with 10,000 jobs and with 100, in Redis commands and bytes, which are free of noise."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from redis import Redis

from config import keys
from tasks.jobs.queries.listing import MOST_LOOKED_AT
from tests.integration.api import Api
from tests.support.fleet import Fleet
from web.http.json_responses import encode
from web.overview.snapshot import SnapshotBuilder
from web.services import services

FEW, MANY = 100, 10_000


@dataclass(frozen=True)
class Cost:
    commands: int
    """Commands that Redis ran, including the commands inside scripts."""
    sent: int
    """Bytes that Redis sent."""
    answered: int
    """Bytes of the answer."""

    def is_at_most_twice(self, other: "Cost") -> bool:
        mine, others = (self.commands, self.sent, self.answered), (other.commands, other.sent, other.answered)
        return all(own <= 2 * base for own, base in zip(mine, others, strict=True))


@pytest.fixture
def crowd(api: Api, fleet: Fleet, state: Redis) -> Callable[[int], None]:
    """Return a function that fills Redis up to a number of jobs with copies of the first job."""
    first = api.done(fleet.hire(), {"x": 1}, {"x": 2, "fail": True})
    fleet.close()  # from here on only the test sends commands to Redis
    parts = [str(key) for key in state.scan_iter(f"*{first}*")]
    assert keys.job(first) in parts
    created_at = state.zscore(keys.jobs(), first)
    assert created_at is not None

    def fill(jobs: int) -> None:
        pipeline = state.pipeline(transaction=False)
        for number in range(int(state.zcard(keys.jobs())), jobs):
            copy = f"{number:032x}"
            for part in parts:
                pipeline.copy(part, part.replace(first, copy))
            pipeline.hset(keys.job(copy), "id", copy)
            pipeline.zadd(keys.jobs(), {copy: created_at - number})
        pipeline.execute()
        assert state.zcard(keys.jobs()) == jobs

    return fill


def cost(state: Redis, look: Callable[[], bytes]) -> Cost:
    look()  # the first call connects and loads scripts
    state.config_resetstat()
    answered = look()
    sent = int(state.info("stats")["total_net_output_bytes"])
    return Cost(sum(int(each["calls"]) for each in state.info("commandstats").values()), sent, len(answered))


def listing(api: Api, query: str = "") -> Callable[[], bytes]:
    def look() -> bytes:
        reply = api.client.get(f"/v1/jobs?limit=50{query}")
        assert reply.status_code == 200, reply.text
        return reply.data

    return look


def overview(api: Api) -> Callable[[], bytes]:
    """Build a new snapshot, which also counts recent jobs; a running process counts them only every few seconds."""

    def look() -> bytes:
        with api.app.app_context():
            return encode(SnapshotBuilder().build(services()))

    return look


@pytest.mark.parametrize("query", ["", "&state=done", "&kind=simulated"])
def test_a_page_of_10_000_jobs_costs_no_more_than_two_of_100(
    api: Api, state: Redis, crowd: Callable[[int], None], query: str
) -> None:
    crowd(FEW)
    few = cost(state, listing(api, query))
    crowd(MANY)
    many = cost(state, listing(api, query))
    assert few.commands > 50, "the list reads each job of its page"
    assert many.is_at_most_twice(few), f"{many} over {few}"


def test_a_filter_without_a_match_reads_a_bounded_number_of_jobs(
    api: Api, state: Redis, crowd: Callable[[int], None]
) -> None:
    crowd(FEW)
    few = cost(state, listing(api, "&state=failed"))
    crowd(MANY)
    many = cost(state, listing(api, "&state=failed"))
    assert few.commands > FEW
    assert many.commands - few.commands <= 1.02 * (MOST_LOOKED_AT - FEW), (
        "the list stops at the bound, and leaves further jobs to the next page"
    )
    # About fifty bytes and a cursor; the jobs themselves would be hundreds of thousands of bytes.
    assert many.sent < few.sent + 1000, "the script filters inside Redis and sends no rejected job"
    assert many.answered < few.answered + 100


def test_the_overview_of_10_000_jobs_costs_no_more_than_two_of_100(
    api: Api, state: Redis, crowd: Callable[[int], None]
) -> None:
    crowd(FEW)
    few = cost(state, overview(api))
    crowd(MANY)
    many = cost(state, overview(api))
    assert few.commands > FEW
    assert many.is_at_most_twice(few), f"{many} over {few}"
