"""What a client does with a server, as functions of its URL: run against the wire server and against the real one.

They use the kind `simulated`, which every Assay has, and check only what holds for any implementation of the contract.
"""

import pytest
from assay import Assay, AsyncAssay, InvalidRequest, JobFailed, NotFound, Retry

#: Quick enough for tests, patient enough for a busy machine.
RETRY = Retry(give_up_after_s=20, first_delay_s=0.01, max_delay_s=0.2)
ITEMS = [{"id": f"item-{n}", "x": n, "fail": n % 10 == 3} for n in range(40)]


def submit_wait_and_read(url: str, token: str = "") -> None:
    with Assay(url, token, retry=RETRY) as client:
        job = client.submit("simulated", ITEMS, metadata={"run": "a"}).wait(timeout_s=60)
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
        job = client.submit("simulated", ITEMS[:5], wait_s=30)
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
        assert client.job(first.id).wait(60).state == "done"
        assert first.id in [view.id for view in client.jobs(limit=100)]


def cancel_a_long_job(url: str, token: str = "") -> None:
    """The server must not be done with it at once: hold it, or let the real one work for `cost_s`."""
    with Assay(url, token, retry=RETRY) as client:
        job = client.submit("simulated", [{"id": str(n), "x": -n} for n in range(500)], {"cost_s": 0.5})
        assert job.cancel().state == "cancelled"
        assert job.cancel().state == "cancelled"
        with pytest.raises(JobFailed) as raised:
            job.wait(60)
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
        await job.wait(60)
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
