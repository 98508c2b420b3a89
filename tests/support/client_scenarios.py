"""Typical uses of a server by its client, as functions of the URL, for the wire server and the real server alike.

They use the kind `simulated`, which every Assay has, and check only properties that the HTTP contract promises.
"""

import pytest
from assay import Assay, AsyncAssay, InvalidRequest, JobFailed, NotFound, Retry

from tests.support.programs import PATIENCE_S

#: Retry soon, so that tests are quick, and give up late, because the machine may be busy.
RETRY = Retry(give_up_after_s=PATIENCE_S, first_delay_s=0.01, max_delay_s=0.2)
ITEMS = [{"id": f"item-{n}", "x": n, "fail": n % 10 == 3} for n in range(40)]


def submit_wait_and_read(url: str, token: str = "") -> None:
    with Assay(url, token, retry=RETRY) as client:
        job = client.submit("simulated", ITEMS, metadata={"run": "a"}).wait(timeout_s=PATIENCE_S)
        assert (job.state, job.view.total, job.view.ok, job.view.failed) == ("done", 40, 36, 4)
        rows = list(job.results())
        assert [row.index for row in rows] == list(range(40))
        assert [row.id for row in rows] == [item["id"] for item in ITEMS]
        assert [row.valid for row in rows] == [not item["fail"] for item in ITEMS]
        assert all(row.error and row.error.type for row in rows if not row.valid)
        scores = job.scores()
        assert scores.valid == [row.valid for row in rows]
        assert [score is None for score in scores.values] == [bool(item["fail"]) for item in ITEMS]
        assert [row.index for row in job.results(start=5, limit=3)] == [5, 6, 7]


def wait_in_the_submit(url: str, token: str = "") -> None:
    with Assay(url, token, retry=RETRY) as client:
        job = client.submit("simulated", ITEMS[:5], wait_s=120)
        assert job.ended
        assert len(job.scores().values) == 5


def stream_a_large_job(url: str, token: str = "", total: int = 6_000) -> None:
    with Assay(url, token, retry=RETRY) as client:
        job = client.submit("simulated", ({"id": str(n), "x": n} for n in range(total)), {"batch_items": 500})
        assert job.view.total == total
        assert [row.id for row in job.results()] == [str(n) for n in range(total)]


def find_the_same_job_by_its_key(url: str, token: str = "") -> None:
    with Assay(url, token, retry=RETRY) as client:
        first = client.submit("simulated", ITEMS, idempotency_key="nightly-run")
        again = client.submit("simulated", ITEMS, idempotency_key="nightly-run")
        assert first.id == again.id
        assert client.job(first.id).wait(PATIENCE_S).state == "done"
        assert first.id in [view.id for view in client.jobs(limit=100)]


def cancel_a_long_job(url: str, token: str = "") -> None:
    """The job must still run when it is cancelled: hold the wire server; the real server works for `cost_s`."""
    with Assay(url, token, retry=RETRY) as client:
        job = client.submit("simulated", [{"id": str(n), "x": -n} for n in range(500)], {"cost_s": 0.5})
        assert job.cancel().state == "cancelled"
        assert job.cancel().state == "cancelled"
        with pytest.raises(JobFailed) as raised:
            job.wait(PATIENCE_S)
        assert raised.value.job.state == "cancelled"


def be_refused(url: str, token: str = "") -> None:
    with Assay(url, token, retry=RETRY) as client:
        with pytest.raises(NotFound):
            client.job("no-such-job")
        with pytest.raises(InvalidRequest):
            client.submit("no-such-kind", [{"id": "a"}])


async def do_the_same_with_asyncio(url: str, token: str = "") -> None:
    async with AsyncAssay(url, token, retry=RETRY) as client:
        job = await client.submit("simulated", ITEMS)
        await job.wait(PATIENCE_S)
        assert [row.id async for row in job.results()] == [item["id"] for item in ITEMS]
        assert (await job.scores()).valid == [not item["fail"] for item in ITEMS]
        assert [row.index async for row in job.results(start=38)] == [38, 39]
        again = await client.job(job.id)
        assert again.state == "done"
        assert job.id in [view.id async for view in client.jobs(limit=100)]
        streamed = await client.submit(
            "simulated", ({"id": str(n), "x": n} for n in range(6_000)), {"batch_items": 500}
        )
        assert len([row async for row in streamed.results()]) == 6_000
