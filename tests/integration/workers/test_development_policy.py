"""Development policy server: works with the unmodified openpi-client, and sends the same frames as openpi's server."""

import http.client
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from tests.support.programs import PATIENCE_S, wait_until
from workers.development_policy import NOTICE
from workers.development_policy.control import Handle, running

#: openpi-client uses the interface of `websockets` before 17.1.
pytestmark = pytest.mark.filterwarnings("ignore:connect\\(\\) must be used as a context manager:DeprecationWarning")
OBSERVATION = {"observation/state": np.zeros(2), "observation/targets": np.eye(4, 2), "prompt": "the red target"}


@pytest.fixture(scope="module")
def running_server() -> Iterator[Handle]:
    with running() as handle:
        yield handle


@pytest.fixture
def server(running_server: Handle) -> Iterator[Handle]:
    yield running_server
    running_server.set(share_error=0, hold=False, key="", version="1", horizon=10, latency_ms=0)


def test_openpis_client_connects_reads_the_metadata_and_gets_actions(server: Handle) -> None:
    client = WebsocketClientPolicy(host="127.0.0.1", port=server.port)
    assert client.get_server_metadata() == {
        "policy": "assay-development", "notice": NOTICE, "horizon": 10, "version": "1",
    }  # fmt: skip
    for _ in range(2):
        reply = client.infer(OBSERVATION)
    assert reply["actions"].shape == (10, 2)
    assert reply["actions"].dtype == np.float32
    assert reply["server_timing"].keys() == {"infer_ms", "prev_total_ms"}
    client._ws.close()


def test_openpis_client_gets_an_error_with_the_traceback_and_the_close_code(server: Handle) -> None:
    client = WebsocketClientPolicy(host="127.0.0.1", port=server.port)
    with pytest.raises(RuntimeError, match=r"(?s)Traceback.*KeyError: 'prompt'"):
        client.infer({"observation/state": np.zeros(2)})
    with pytest.raises(ConnectionClosedError) as closed:
        client._ws.recv(timeout=PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1011


def test_a_text_frame_is_answered_like_any_other_error(server: Handle) -> None:
    with connect(server.url, compression=None) as client:
        client.recv(timeout=PATIENCE_S)
        client.send("hello")
        assert "Traceback" in client.recv(timeout=PATIENCE_S)


def test_messages_are_neither_compressed_nor_limited(server: Handle) -> None:
    with connect(server.url, max_size=None) as client:  # the client offers compression
        assert client.response is not None
        assert "Sec-WebSocket-Extensions" not in client.response.headers
        client.recv(timeout=PATIENCE_S)
        picture = np.zeros((2200, 3000, 3), np.uint8)  # 20 MB
        client.send(msgpack_numpy.packb(OBSERVATION | {"observation/image": picture}))
        assert "actions" in msgpack_numpy.unpackb(client.recv(timeout=PATIENCE_S))


def test_health_is_on_the_same_port_and_a_key_is_required(server: Handle) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=PATIENCE_S) as reply:
        assert (reply.status, reply.read()) == (200, b"OK\n")
    server.set(key="s3cret")
    with pytest.raises(InvalidStatus):
        connect(server.url)
    client = WebsocketClientPolicy(host="127.0.0.1", port=server.port, api_key="s3cret")
    client.infer(OBSERVATION)
    client._ws.close()


def test_the_server_answers_no_other_request_while_it_infers(server: Handle) -> None:
    """The reference server blocks in the same way, which is why a health check allows for a slow answer."""
    server.set(latency_ms=1000)
    client = WebsocketClientPolicy(host="127.0.0.1", port=server.port)
    busy = server.counts()["busy_s"]

    def leaves_a_question_unanswered() -> bool:
        inference = threading.Thread(target=client.infer, args=(OBSERVATION,))
        inference.start()
        answered = []
        while inference.is_alive():
            health = http.client.HTTPConnection("127.0.0.1", server.port, timeout=0.2)
            try:
                health.request("GET", "/healthz")
                answered.append(health.getresponse().status)
            except TimeoutError:
                answered.append(0)
            finally:
                health.close()
        inference.join()
        return 0 in answered

    wait_until(leaves_a_question_unanswered, "a request that arrives while the server infers waits")
    server.set(latency_ms=0)
    assert server.counts()["busy_s"] - busy >= 1.0
    client._ws.close()


def test_held_calls_wait_and_are_counted(server: Handle) -> None:
    server.reset()
    server.set(hold=True)
    client = WebsocketClientPolicy(host="127.0.0.1", port=server.port)
    call = threading.Thread(target=client.infer, args=(OBSERVATION,))
    call.start()
    wait_until(lambda: server.counts().get("in_flight") == 1, "the call has come")
    assert call.is_alive()
    server.set(hold=False)
    call.join(PATIENCE_S)
    assert server.counts()["by_fate"] == {"ok": 1}
    client._ws.close()


def test_an_invalid_knob_is_refused_with_a_sentence(server: Handle) -> None:
    with pytest.raises(ValueError, match="Unknown knob 'share_joy'"):
        server.set(share_joy=1)
    with pytest.raises(ValueError, match="share_error: input should be less than or equal to 1"):
        server.set(share_error=2)
    with pytest.raises(ValueError, match="add up to more than 1"):
        server.set(share_error=0.6, share_hang=0.6)
