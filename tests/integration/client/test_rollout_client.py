"""The client's rollout classes against the real application, with the literal calls of asynchronous trainers."""

from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from assay import Assay, Conflict, NotFound
from assay.rollouts import FullyAsyncRollouter, MessageQueueClient, ParameterSynchronizer
from assay.rollouts.configuration import spec_of
from werkzeug.serving import make_server

from tests.support.fleet import Fleet
from tests.support.programs import PATIENCE_S, wait_until
from web.app import create_app

PROMPTS = [{"id": str(n), "prompt": f"prompt {n}"} for n in range(5)]
SPEC: dict[str, Any] = {"simulated": {}, "n": 4, "train_batch_size": 8, "max_queue_size": 40}


def bounded(app: Any) -> Any:
    """Wrap the application so that request bodies end at their length, as with gunicorn."""

    def application(environ: Any, start: Any) -> Any:
        if not environ.get("wsgi.input_terminated"):
            environ["wsgi.input"] = BytesIO(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
        return app(environ, start)

    return application


@pytest.fixture
def client(fleet: Fleet) -> Iterator[Assay]:
    fleet.settings = fleet.settings.model_copy(update={"storage_shared": True})
    server = make_server("127.0.0.1", 0, bounded(create_app(fleet.settings)), threaded=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    with Assay(f"http://127.0.0.1:{server.port}") as client:
        yield client
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def working(fleet: Fleet) -> Iterator[None]:
    """Run a device that works continuously."""
    hand, over = fleet.hire(), Event()

    def work() -> None:
        while not over.wait(0.01):
            hand.work()

    thread = Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


def test_a_sample_four_versions_old_is_dropped_if_three_are_allowed(client: Assay) -> None:
    queue = MessageQueueClient(max_staleness=3, client=client)
    assert queue.put_samples({"text": "a"}, param_version=1)
    assert queue.get_samples(current_param_version=5) is None
    assert queue.get_statistics()["dropped_stale_samples"] == 1


@pytest.mark.usefixtures("working")
def test_a_paused_rollout_generates_no_sample_until_it_is_resumed(client: Assay) -> None:
    rollouter = FullyAsyncRollouter(SPEC, PROMPTS, client=client)
    assert rollouter.pause_rollout() is True
    assert rollouter.is_rollout_paused() is True
    before = rollouter.get_statistics()["total_generated_samples"]
    assert rollouter.get_statistics()["total_generated_samples"] == before
    assert rollouter.resume_rollout() is True
    assert rollouter.is_rollout_paused() is False
    wait_until(lambda: rollouter.get_statistics()["queue_size"] == 40, "the queue is full")
    assert (rollouter.get_statistics()["pause_count"], rollouter.get_statistics()["resume_count"]) == (1, 1)


@pytest.mark.usefixtures("working")
def test_synchronized_weights_are_the_next_version_on_every_device(client: Assay, tmp_path: Path) -> None:
    rollouter = FullyAsyncRollouter(SPEC, PROMPTS, client=client)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    synchronizer = ParameterSynchronizer(rollouter, tmp_path / "model.safetensors")
    queue = rollouter.queue(whole_groups=True)
    for version in (1, 2):
        assert queue.get_samples(8, timeout=PATIENCE_S)
        assert synchronizer.sync_weights() is True
        assert (synchronizer.current_version, synchronizer.status["state"]) == (version, "synced")
    assert synchronizer.sync_weights(7, b"other") is True
    assert synchronizer.sync_weights(7, b"other") is True, "a retry after a lost response: the version already exists"
    with pytest.raises(Conflict, match="not new"):
        synchronizer.sync_weights(7, b"another")
    with pytest.raises(ValueError, match="weights are missing"):
        ParameterSynchronizer(rollouter).sync_weights()


def test_put_samples_accepts_the_short_and_the_long_form(client: Assay) -> None:
    queue = MessageQueueClient(max_staleness=3, max_queue_size=4, client=client)
    assert queue.put_samples(0, {"n": 1}, 2, {"worker": "w"}) is True
    assert queue.put_samples({"n": 2}, 2) is True
    assert queue.put_samples(1, {"n": 3}, param_version=2) is True
    assert queue.put_samples(epoch=1, sample={"n": 4}, param_version=2, rollout_metadata={}) is True
    assert queue.put_samples({"n": 5}, param_version=2) is False, "the queue has room for only four samples"
    assert queue.get_queue_size() == 4
    taken = queue.get_samples(4, 0.0, 3)
    assert taken
    samples, metadata = taken
    assert [sample["n"] for sample in samples] == [1, 2, 3, 4]
    assert metadata["rollout_metadata"][0] == {"worker": "w"}
    assert metadata["param_versions"] == [2] * 4
    assert (metadata["freshness/avg_sample_age"], metadata["version_diversity"]) == (1, 1)
    with pytest.raises(TypeError):
        queue.put_samples(1, 2, 3, 4, 5)


def test_the_next_call_acknowledges_and_a_restarted_trainer_gets_its_batch_again(client: Assay) -> None:
    queue = MessageQueueClient(client=client)
    queue.put_samples([1, 2, 3, 4, 5, 6])
    trainer = MessageQueueClient(queue.rollout, consumer="t", client=client)
    assert trainer.get_samples(2)[0] == [1, 2]  # type: ignore[index]
    assert trainer.get_samples(2)[0] == [3, 4]  # type: ignore[index]
    again = MessageQueueClient(queue.rollout, consumer="t", client=client)
    assert again.get_samples(2)[0] == [3, 4]  # type: ignore[index]
    assert trainer.acknowledge() is False, "its batch was delivered to the other client"
    with again:
        assert again.get_samples(2)[0] == [5, 6]  # type: ignore[index]
    assert queue.get_statistics()["total_consumed"] == 6


def test_a_batch_returns_to_the_queue_after_an_exception(client: Assay) -> None:
    queue = MessageQueueClient(client=client)
    queue.put_samples([1, 2])
    with suppress(RuntimeError), MessageQueueClient(queue.rollout, client=client) as trainer:
        assert trainer.get_samples(2)
        raise RuntimeError
    assert queue.get_queue_size() == 2


@pytest.mark.usefixtures("working")
def test_generated_samples_come_with_their_prompt_and_versions(client: Assay, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "reference": "b"}\n')
    rollouter = FullyAsyncRollouter(SPEC, tmp_path / "prompts.jsonl", client=client, max_staleness=1)
    taken = rollouter.queue(whole_groups=True).get_samples(8, timeout=PATIENCE_S, current_param_version=0)
    assert taken
    sample = taken[0][0]
    assert (sample["item"]["prompt"], sample["item"]["reference"], sample["versions"]) == ("a", "b", [[0, 4]])
    assert len({sample["index"] for sample in taken[0]}) == 2
    rollouter.end()
    assert rollouter.view()["job"]["state"] == "cancelled"


def test_the_configuration_of_a_trainer_is_accepted_unchanged() -> None:
    config = {
        "data": {"train_batch_size": 4, "max_response_length": 1024},
        "async_training": {"staleness_threshold": 3, "max_queue_size": 100, "generation_timeout": 30.0},
        "rollout.n": 8,
    }
    assert spec_of(config, model="m", partial_rollout=False) == {
        "train_batch_size": 4,
        "staleness_threshold": 3,
        "max_queue_size": 100,
        "generation_timeout": 30.0,
        "model": "m",
        "interrupt": "finish",
        "sampling": {"n": 8, "max_new_tokens": 1024, "temperature": 1.0},
    }
    with pytest.warns(UserWarning, match="n_gpus_per_node, total_training_steps"):
        assert spec_of({"trainer": {"n_gpus_per_node": 2, "total_training_steps": 2}}) == {}
    with pytest.warns(UserWarning, match="max_prompt_length: .* the model's own context"):
        assert spec_of({"data.max_prompt_length": 512}) == {}


def test_an_unknown_rollout_raises_not_found(client: Assay) -> None:
    with pytest.raises(NotFound):
        MessageQueueClient("0" * 32, client=client).get_samples()
    with pytest.raises(NotFound):
        MessageQueueClient("0" * 32, client=client).put_samples(1)
