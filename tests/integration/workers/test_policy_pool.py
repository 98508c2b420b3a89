"""Policy pool over real sockets: with a server built like openpi's own server, and with servers that misbehave."""

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.episodes.policy_servers import PolicyServer, pool_status
from tasks.errors import AssayError, PolicyBroken, PolicyFailed, PolicyTimeout, PolicyUnavailable
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S, wait_until
from tests.support.reference_policy import ReferencePolicy
from workers.development_policy.control import Handle, running
from workers.policies.address import Address
from workers.policies.connection import Connection, Limits
from workers.policies.pool import Pool

OBSERVATION = {"observation/state": np.zeros(2), "observation/targets": np.eye(4, 2), "prompt": "the red target"}
PATIENT = Limits(connect_s=PATIENCE_S, greeting_s=PATIENCE_S, reply_s=PATIENCE_S)
#: For servers that never greet.
IMPATIENT = Limits(connect_s=PATIENCE_S, greeting_s=1.0, reply_s=PATIENCE_S)


@contextmanager
def pool_of(*urls: str, limits: Limits = PATIENT, **options: Any) -> Iterator[Pool]:
    with closing(Pool([Address(url) for url in urls], limits, **options)) as pool:
        yield pool


def of(pool: Pool, url: str) -> PolicyServer:
    (status,) = (status for status in pool.status() if status.url == url)
    return status


@pytest.fixture(scope="module")
def development() -> Iterator[Handle]:
    with running() as handle:
        yield handle


@pytest.fixture
def server(development: Handle) -> Iterator[Handle]:
    """Yield the development policy, and reset its knobs after the test."""
    yield development
    development.set(
        **dict.fromkeys([f"share_{fate}" for fate in ("error", "hang", "garbage", "shape", "drop")], 0),
        greeting="yes", key="", version="1", hold=False, seed=0,
    )  # fmt: skip


# --- calls of a correct server ---


def test_openpis_server_understands_a_call_through_the_pool() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (224, 224, 3), np.uint8)
    observation = {"observation/image": picture, "observation/state": np.arange(8.0), "prompt": "pick up the bowl"}

    def infer(seen: dict[str, Any]) -> dict[str, Any]:
        return {"actions": np.tile(seen["observation/state"][:7], (10, 1)), "note": {"nested": [1, "two"]}}

    with (
        ReferencePolicy(infer, {"policy": "pi0", "norm": np.ones(3, np.float32)}) as server,
        pool_of(server.url) as pool,
    ):
        reply = pool.infer(observation, wait_s=PATIENCE_S)
        assert reply.values["actions"].tolist() == [list(range(7))] * 10
        assert reply.values["note"] == {"nested": [1, "two"]}
        assert pool.metadata(server.url)["policy"] == "pi0"
        assert pool.metadata(server.url)["norm"].tolist() == [1, 1, 1]
        (seen,) = server.requests
        assert np.array_equal(seen["observation/image"], picture)
        assert seen["prompt"] == "pick up the bowl"
        assert "Authorization" not in server.headers[0]


def test_the_key_is_sent_like_openpi_sends_it_and_a_refusal_is_reported(server: Handle) -> None:
    with ReferencePolicy() as reference:
        connection = Connection(Address(reference.url, "s3cret"))
        with closing(connection):
            connection.infer(OBSERVATION, PATIENCE_S)
        assert reference.headers[0]["Authorization"] == "Api-Key s3cret"
    server.set(key="another")
    with closing(Connection(Address(server.url, "s3cret"))) as refused:
        with pytest.raises(PolicyUnavailable, match="refuses the API key") as error:
            refused.connect()
        assert "s3cret" not in str(error.value)
    with closing(Connection(Address(server.url, "another"))) as welcome:
        welcome.connect()


@pytest.mark.skipif(not shutil.which("openssl"), reason="a certificate is made with openssl")
def test_a_tls_server_is_used_only_with_a_trusted_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -days 2 -subj /CN=test"
    subprocess.run([*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    picture = np.random.default_rng(0).integers(0, 255, (512, 512, 3), np.uint8)
    with ReferencePolicy(tls=context) as server:
        url = server.url.replace("ws://", "wss://")
        with pytest.raises(PolicyUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            Connection(Address(url)).connect()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with pool_of(url, tend_s=0.02) as pool:
            for _ in range(3):
                pool.infer(OBSERVATION | {"picture": picture}, wait_s=PATIENCE_S)
            server.ping_idle = True
            wait_until(lambda: server.pongs >= 3, "pongs")
        assert np.array_equal(server.requests[-1]["picture"], picture)


def test_large_messages_pass_uncompressed_both_ways() -> None:
    def infer(seen: dict[str, Any]) -> dict[str, Any]:
        return {"back": seen["cloud"]}

    cloud = np.random.default_rng(0).random((1_500_000,))  # 12 MB
    with ReferencePolicy(infer) as server, closing(Connection(Address(server.url))) as connection:
        assert np.array_equal(connection.infer({"cloud": cloud}, PATIENCE_S).values["back"], cloud)
        assert "Sec-WebSocket-Extensions" not in server.headers[0]


def test_at_most_one_request_per_server_is_in_flight() -> None:
    with (
        ReferencePolicy(latency_s=0.005) as one,
        ReferencePolicy(latency_s=0.005) as two,
        pool_of(one.url, two.url) as pool,
        ThreadPoolExecutor(16) as threads,
    ):
        list(threads.map(lambda _: pool.infer(OBSERVATION, wait_s=PATIENCE_S), range(60)))
        assert one.early == two.early == 0
        assert len(one.requests) + len(two.requests) == 60
        assert min(len(one.requests), len(two.requests)) >= 10, "both servers are used"
        assert len(one.headers) == len(two.headers) == 1, "each server has a single connection"


def test_callers_are_served_in_order_of_arrival(server: Handle) -> None:
    server.set(hold=True)
    order: list[int] = []
    with pool_of(server.url) as pool:

        def call(number: int) -> None:
            with pool.acquire(PATIENCE_S) as connection:
                order.append(number)
                connection.infer(OBSERVATION, PATIENCE_S)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda ahead=number: order and len(pool._waiters) == ahead, "the caller is queued")
        server.set(hold=False)
        for thread in threads:
            thread.join()
    assert order == list(range(6))


# --- a typed error for each fault, and recovery of the pool ---


@pytest.mark.parametrize(
    ("knobs", "kind", "said"),
    [
        ({"share_error": 1, "error": "RuntimeError"}, PolicyBroken, "broke: RuntimeError: told to fail"),
        ({"share_error": 1, "error": "ValueError"}, PolicyFailed, "ValueError: told to fail"),
        ({"share_hang": 1}, PolicyTimeout, "timed out"),
        ({"share_garbage": 1}, PolicyBroken, "does not speak the policy protocol"),
        ({"share_drop": 1}, PolicyUnavailable, "has gone"),
    ],
)
def test_a_fault_is_a_typed_error_and_a_repaired_server_is_used_again(
    server: Handle, knobs: dict[str, Any], kind: type[AssayError], said: str
) -> None:
    with pool_of(server.url) as pool:
        pool.infer(OBSERVATION, wait_s=PATIENCE_S)
        server.set(**knobs)
        with pytest.raises(kind, match=said) as error:
            pool.infer(OBSERVATION, wait_s=PATIENCE_S, reply_s=0.5 if "share_hang" in knobs else PATIENCE_S)
        assert type(error.value) is kind
        assert server.url in str(error.value)
        server.set(share_error=0, share_hang=0, share_garbage=0, share_drop=0)
        pool.infer(OBSERVATION, wait_s=PATIENCE_S)
        status = of(pool, server.url)
        assert (status.calls, status.errors, status.reconnects) == (3, 1, 1), "the old socket was discarded"


def test_an_invalid_observation_is_a_failure_of_the_request(server: Handle) -> None:
    with pool_of(server.url) as pool:
        with pytest.raises(PolicyFailed, match="KeyError: 'prompt'"):
            pool.infer({"observation/state": np.zeros(2)}, wait_s=PATIENCE_S)
        with pytest.raises(PolicyFailed, match="cannot be sent"):
            pool.infer({"observation/state": object()}, wait_s=PATIENCE_S)
        assert of(pool, server.url).calls == 1, "an observation that cannot be encoded uses no call of the server"


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """TCP server that runs `answer` in a thread for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as connections:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.callback(connection.close)
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def stay_silent(_: socket.socket) -> None:
    """Act like a host with a stuck process, for which the kernel still accepts connections."""


def send_smtp(connection: socket.socket) -> None:
    connection.sendall(b"220 smtp.example.org ready\r\n\r\n" * 3)


def answer_http(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")


def hang_up(connection: socket.socket) -> None:
    connection.close()


def drip(connection: socket.socket) -> None:
    """Send a byte at a time without end, so that no single read waits long."""
    ended = threading.Event()
    try:
        connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n")
        while not ended.wait(0.05):
            connection.sendall(b"x")
    except OSError:
        return


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (stay_silent, PolicyTimeout),
        (drip, PolicyTimeout),
        (send_smtp, PolicyBroken),
        (answer_http, PolicyUnavailable),
        (hang_up, PolicyUnavailable),
    ],
)
def test_a_port_without_a_policy_server_is_detected_and_blocks_no_call(
    answer: Callable[[socket.socket], None], kind: type[AssayError], server: Handle
) -> None:
    limits = IMPATIENT if kind is PolicyTimeout else PATIENT
    with listening(answer) as url:
        with closing(Connection(Address(url), limits)) as connection, pytest.raises(kind):
            connection.connect()
        with pool_of(url, server.url, limits=limits) as pool:
            for _ in range(5):
                pool.infer(OBSERVATION, wait_s=PATIENCE_S)
            assert of(pool, server.url).calls == 5, "the working server answers every call"
            wait_until(lambda: of(pool, url).broken, "the pool marks the server as broken")
            assert of(pool, url).error


@pytest.mark.parametrize(("greeting", "kind"), [("none", PolicyTimeout), ("garbage", PolicyBroken)])
def test_a_server_with_an_invalid_greeting_is_not_used(server: Handle, greeting: str, kind: type[AssayError]) -> None:
    server.set(greeting=greeting)
    limits = IMPATIENT if kind is PolicyTimeout else PATIENT
    with closing(Connection(Address(server.url), limits)) as connection, pytest.raises(kind):
        connection.connect()


def test_an_absent_server_fails_the_call_at_its_deadline_with_a_reason() -> None:
    with pool_of(f"ws://127.0.0.1:{free_port()}") as pool:
        pool.warm()  # does not wait
        wait_until(lambda: pool.status()[0].broken, "the pool tried to connect")
        with pytest.raises(PolicyUnavailable, match=r"(?s)No policy server was free within 0 s.*refused"):
            pool.infer(OBSERVATION, wait_s=0.1)


def test_a_server_that_appears_later_serves_waiting_calls() -> None:
    port = free_port()
    with pool_of(f"ws://127.0.0.1:{port}") as pool, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(pool.infer, OBSERVATION, PATIENCE_S)
        wait_until(lambda: pool.status()[0].broken, "the pool tried to connect without success")
        assert not waiting.done()
        with ReferencePolicy(port=port) as server:
            assert waiting.result(PATIENCE_S).values["actions"].shape == (10, 2)
            assert server.url == pool.urls[0]


def test_the_pool_reconnects_to_a_restarted_server_without_a_call() -> None:
    with ReferencePolicy(metadata={"version": "1"}) as server, pool_of(server.url, tend_s=0.05) as pool:
        pool.infer(OBSERVATION, wait_s=PATIENCE_S)
        server.hang_up()
        wait_until(
            lambda: of(pool, server.url).connected and of(pool, server.url).reconnects == 1,
            "the pool is connected again",
        )
        pool.infer(OBSERVATION, wait_s=PATIENCE_S)
        assert (of(pool, server.url).calls, of(pool, server.url).reconnects) == (2, 1)


def test_an_idle_connection_answers_the_servers_pings() -> None:
    """Servers disconnect clients that do not answer pings, and a pool may be idle for hours."""
    with ReferencePolicy() as server, pool_of(server.url, tend_s=0.02) as pool:
        pool.infer(OBSERVATION, wait_s=PATIENCE_S)
        server.ping_idle = True
        wait_until(lambda: server.pongs >= 3, "pongs")
        assert of(pool, server.url).reconnects == 0
        pool.infer(OBSERVATION, wait_s=PATIENCE_S)


def test_the_pool_backs_off_longer_after_repeated_failures() -> None:
    connection = Connection(Address(f"ws://127.0.0.1:{free_port()}"), IMPATIENT)
    waits = []
    for _ in range(4):
        with pytest.raises(PolicyUnavailable):
            connection.connect()
        waits.append(connection.retry_in_s)
    assert waits == sorted(waits)
    assert waits[-1] > 4 * waits[0]
    with pytest.raises(PolicyUnavailable, match="Backing off"):
        connection.infer(OBSERVATION)


# --- one owner process per server ---


class Ledger:
    """Record of the owner of each server, shared by every process of the test."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._lock = threading.Lock()

    def owner(self, name: str) -> "NamedOwner":
        return NamedOwner(self, name)

    def take(self, url: str, name: str) -> bool:
        with self._lock:
            return self._owners.setdefault(url, name) == name

    def give_back(self, url: str, name: str) -> None:
        with self._lock:
            if self._owners.get(url) == name:
                del self._owners[url]

    def give_to(self, url: str, name: str) -> None:
        with self._lock:
            self._owners[url] = name


class NamedOwner:
    def __init__(self, ledger: Ledger, name: str) -> None:
        self._ledger, self._name = ledger, name

    def try_take(self, url: str) -> bool:
        return self._ledger.take(url, self._name)

    def give_back(self, url: str) -> None:
        self._ledger.give_back(url, self._name)


def test_a_server_has_one_owner_and_the_next_owner_takes_it_when_it_is_released(server: Handle) -> None:
    wait_until(lambda: server.counts().get("connections", 0) == 0, "connections of earlier tests are closed")
    server.reset()
    ledger = Ledger()
    first = Pool([Address(server.url)], PATIENT, ledger.owner("first"), tend_s=0.05)
    with pool_of(server.url, owner=ledger.owner("second"), tend_s=0.05) as second:
        first.infer(OBSERVATION, wait_s=PATIENCE_S)
        second.warm()
        wait_until(
            lambda: of(second, server.url).elsewhere, "the second pool sees that another process owns the server"
        )
        with pytest.raises(PolicyUnavailable, match="is leased by another process"):
            second.infer(OBSERVATION, wait_s=0.1)
        assert server.counts()["peak_connections"] == 1
        first.close()
        second.infer(OBSERVATION, wait_s=PATIENCE_S)
        assert not of(first, server.url).connected


def test_a_pool_disconnects_from_a_server_that_it_no_longer_owns(server: Handle) -> None:
    ledger = Ledger()
    with pool_of(server.url, owner=ledger.owner("first"), tend_s=0.05) as first:
        first.infer(OBSERVATION, wait_s=PATIENCE_S)
        ledger.give_to(server.url, "another")
        wait_until(lambda: of(first, server.url).elsewhere, "the pool notices the new owner")
        wait_until(lambda: server.counts()["connections"] == 0, "the pool closes its connection")


# --- status of the pool ---


def test_the_status_has_the_fields_of_earlier_releases_and_more(server: Handle) -> None:
    absent = free_port()
    with pool_of(server.url, f"ws://127.0.0.1:{absent}") as pool:
        pool.infer(OBSERVATION, wait_s=PATIENCE_S)
        wait_until(lambda: of(pool, f"ws://127.0.0.1:{absent}").broken, "the absent server is marked as broken")
        with pool.acquire(PATIENCE_S):
            status = pool_status(pool.status())
        assert status["total_clients"] == 2
        assert status["available_clients"] == 0
        assert status["hosts_ports"] == [["127.0.0.1", server.port], ["127.0.0.1", absent]]
        assert (status["connected"], status["busy"], status["broken"]) == (1, 1, 1)
        first, second = status["servers"]
        assert (first["calls"], first["errors"], first["reconnects"], first["broken"]) == (1, 0, 0, False)
        assert first["latency_ms"] > 0
        assert (second["connected"], second["latency_ms"]) == (False, None)
        assert "refused" in second["error"]
        wait_until(lambda: pool_status(pool.status())["available_clients"] == 1, "free again")
