"""Chunks that run now, as the list of devices and the metrics show them."""

from tasks.jobs.queries.running_chunks import RunningChunks
from tests.integration.api import Api
from tests.support.fleet import Fleet


def test_a_device_lists_its_running_chunks_with_job_kind_and_stage(fleet: Fleet, api: Api) -> None:
    hand = fleet.hire()
    job = fleet.submit(*({"x": x} for x in range(3)), priority="interactive")
    (device,) = api.client.get("/v1/devices").json["devices"]
    assert device["running"] == [], "a queued chunk is not listed as running"
    (chunk,) = hand.take()
    (device,) = api.client.get("/v1/devices").json["devices"]
    (row,) = device["running"]
    assert row.pop("since") > 0
    assert row == {
        "queue": "gpu.node1.0", "chunk": chunk.id, "worker": "gpu.node1.0", "job": job, "kind": "simulated",
        "priority": "interactive", "stage": "run", "items": 3,
    }  # fmt: skip
    running = RunningChunks(fleet.core.state)
    assert [each.chunk for each in running.read()] == [chunk.id], (
        "without queue names, chunks of every queue are listed"
    )
    assert running.read(["cpu"]) == []
    fleet.core.cancel(job)
    fleet.core.ledger.commit(chunk, "gpu.node1.0", 0, (), over=True)
    assert running.read() == []
