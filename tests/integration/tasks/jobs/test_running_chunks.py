"""What runs now, as devices and metrics tell it."""

from tasks.jobs.queries.running_chunks import RunningChunks
from tests.integration.api import Api
from tests.support.fleet import Fleet


def test_a_device_tells_the_chunks_it_runs_and_what_they_are_of(fleet: Fleet, api: Api) -> None:
    hand = fleet.hire()
    job = fleet.submit(*({"x": x} for x in range(3)), priority="interactive")
    (device,) = api.client.get("/v1/devices").json["devices"]
    assert device["running"] == [], "what waits does not run"
    (chunk,) = hand.take()
    (device,) = api.client.get("/v1/devices").json["devices"]
    (row,) = device["running"]
    assert row.pop("since") > 0
    assert row == {
        "queue": "gpu.node1.0", "chunk": chunk.id, "worker": "gpu.node1.0", "job": job, "kind": "simulated",
        "priority": "interactive", "stage": "run", "items": 3,
    }  # fmt: skip
    running = RunningChunks(fleet.core.state)
    assert [each.chunk for each in running.read()] == [chunk.id], "all queues, when none is named"
    assert running.read(["cpu"]) == []
    fleet.core.cancel(job)
    fleet.core.ledger.commit(chunk, "gpu.node1.0", 0, (), over=True)
    assert running.read() == []
