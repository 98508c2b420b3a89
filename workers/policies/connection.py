"""Connection to a policy server: opened when warmed or first used, closed after every error.

Used by one thread at a time, which `workers.policies.pool` guarantees. Every error closes the socket, so that a late
reply is never mistaken for the reply to the next request.
"""

import math
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import websocket

from tasks.errors import PolicyBroken, PolicyFailed, PolicyTimeout, PolicyUnavailable
from workers.policies.address import Address
from workers.policies.codec import CodecError, decode, encode
from workers.policies.identity import NOBODY, PolicyIdentity, identify
from workers.policies.server_errors import read_failure
from workers.policies.sockets import BoundedSocket, BoundedTlsSocket, open_socket
from workers.policies.websocket_frames import binary_frame

#: Seconds until the first retry after a failure; doubles with each consecutive failure.
FIRST_BACKOFF_S = 0.25
MAX_BACKOFF_S = 15.0
#: Number of latest calls with a recorded latency.
REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts of a connection, in seconds."""

    connect_s: float = 5.0
    greeting_s: float = 60.0
    """From the open connection to the metadata: the reference server greets no client while it infers."""
    reply_s: float = 120.0


@dataclass(slots=True)
class Counts:
    calls: int = 0
    errors: int = 0
    """Errors of calls and of connection attempts."""
    connects: int = 0
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def reconnects(self) -> int:
        return max(0, self.connects - 1)


@dataclass(frozen=True, slots=True)
class Reply:
    values: dict[str, Any]
    """The reply of the server; `actions` is the plan."""
    seconds: float
    policy: PolicyIdentity
    """The policy that answered."""


class Connection:
    def __init__(self, address: Address, limits: Limits | None = None) -> None:
        self.address = address
        self.counts = Counts()
        self.metadata: Mapping[str, Any] = {}
        """Metadata that the server sent when it was last connected."""
        self.policy = NOBODY
        self.error = ""
        """Reason why it is not connected; empty while connected, and before the first attempt."""
        self._limits = limits or Limits()
        self._ws: websocket.WebSocket | None = None
        self._failures = 0
        self._retry_at = -math.inf

    @property
    def is_open(self) -> bool:
        return self._ws is not None

    @property
    def retry_in_s(self) -> float:
        """Remaining seconds of the backoff after a failure."""
        return max(0.0, self._retry_at - time.monotonic())

    def connect(self) -> None:
        """Connect and read the metadata. Raises PolicyUnavailable, PolicyTimeout, or, if the other side is not a policy
        server, PolicyBroken."""
        self.close()
        with self._guarded("connecting"):
            self._ws = websocket.WebSocket(skip_utf8_validation=True)
            sock = open_socket(self.address, time.monotonic() + self._limits.connect_s)
            sock.deadline = time.monotonic() + self._limits.greeting_s
            key = self.address.api_key
            self._ws.connect(  # type: ignore[no-untyped-call]
                self.address.url,
                socket=sock,
                header=[f"Authorization: Api-Key {key}"] if key else [],
                suppress_origin=True,
                redirect_limit=0,
            )
            greeting = self._receive()
            metadata = decode(greeting)
            if not isinstance(metadata, dict):
                raise CodecError("its greeting is not a metadata dictionary")
            self.metadata, self.policy = metadata, identify(greeting, metadata, self.address.version)
        self.counts.connects += 1
        self.error = ""

    def infer(self, observation: Mapping[str, Any], timeout_s: float | None = None) -> Reply:
        return self.exchange(frame_of(observation), timeout_s)

    def exchange(self, frame: bytes, timeout_s: float | None = None) -> Reply:
        """Send a request's frame and wait for the reply. Connects if necessary."""
        if not self.is_open:
            if wait_s := self.retry_in_s:
                raise PolicyUnavailable(f"Backing off for {wait_s:.1f} s more: {self.error}")
            self.connect()
        self.counts.calls += 1
        started = time.monotonic()
        with self._guarded("answering"):
            sock = self._sock()
            sock.deadline = started + (self._limits.reply_s if timeout_s is None else timeout_s)
            sock.sendall(frame)
            values = decode(self._receive())
            if not isinstance(values, dict):
                raise CodecError("its reply is not a dictionary")
        self._failures = 0
        seconds = time.monotonic() - started
        self.counts.latencies_ms.append(1000 * seconds)
        return Reply(values, seconds, self.policy)

    def tend(self) -> None:
        """Answer the server's pings on an idle connection, since it closes silent clients after a while, and detect a
        lost connection. Raises the same errors as `exchange`."""
        if not self.is_open:
            return
        with self._guarded("idle"):
            while _is_readable(self._sock()):
                assert self._ws is not None
                self._sock().deadline = time.monotonic() + self._limits.connect_s
                opcode, _ = self._ws.recv_data(control_frame=True)
                if opcode == websocket.ABNF.OPCODE_CLOSE:
                    raise websocket.WebSocketConnectionClosedException("it closed the idle connection")
                if opcode in (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT):
                    raise CodecError("it sent a message without a request")

    def close(self) -> None:
        if ws := self._ws:
            self._ws = None
            if ws.sock:
                ws.sock.close()  # no closing handshake: it would wait for the server's reply

    def _sock(self) -> BoundedSocket | BoundedTlsSocket:
        assert self._ws is not None
        if not isinstance(self._ws.sock, BoundedSocket | BoundedTlsSocket):
            raise websocket.WebSocketConnectionClosedException("it closed the connection")
        return self._ws.sock

    def _receive(self) -> bytes:
        assert self._ws is not None
        opcode, data = self._ws.recv_data()
        if opcode == websocket.ABNF.OPCODE_TEXT:
            text = data.decode(errors="replace") if isinstance(data, bytes) else data
            raise read_failure(text, self.address.url)
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            raise websocket.WebSocketConnectionClosedException(_close_reason(data))
        assert isinstance(data, bytes)
        return data

    @contextmanager
    def _guarded(self, action: str) -> Iterator[None]:
        """Close the socket on every error, and translate the error into an AssayError."""
        server = f"The policy server {self.address.url}"
        try:
            yield
        except PolicyFailed as error:  # caused by the request: no backoff for the server
            self._drop(str(error), 0.0)
            raise
        except PolicyBroken as error:
            self._fail(str(error))
            raise
        except (TimeoutError, websocket.WebSocketTimeoutException) as error:
            self._fail(f"{server} timed out ({action}).")
            raise PolicyTimeout(self.error) from error
        except websocket.WebSocketBadStatusException as error:
            refused = "refuses the API key" if error.status_code in (401, 403) else f"answers {error.status_code}"
            self._fail(f"{server} {refused}.")
            raise PolicyUnavailable(self.error) from error
        except (OSError, websocket.WebSocketConnectionClosedException) as error:
            self._fail(f"{server} cannot be reached or has gone ({action}): {error}")
            raise PolicyUnavailable(self.error) from error
        # For an answer that is not HTTP, websocket-client lets any error of its parser through.
        except (CodecError, websocket.WebSocketException, ValueError, LookupError, AttributeError) as error:
            self._fail(f"{server} does not speak the policy protocol ({action}): {error}"[:400])
            raise PolicyBroken(self.error) from error
        except BaseException:
            self.close()
            raise

    def _fail(self, why: str) -> None:
        self._failures += 1
        self._drop(why, min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** (self._failures - 1)))

    def _drop(self, why: str, backoff_s: float) -> None:
        self.close()
        self.counts.errors += 1
        self.error, self._retry_at = why, time.monotonic() + backoff_s


def frame_of(observation: Mapping[str, Any]) -> bytes:
    """Encode a request as a frame. Raises PolicyFailed for a value that the protocol does not support."""
    try:
        return binary_frame(encode(observation))
    except CodecError as error:
        raise PolicyFailed(f"The observation {error}") from error


def _is_readable(sock: BoundedSocket | BoundedTlsSocket) -> bool:
    if isinstance(sock, BoundedTlsSocket) and sock.pending():
        return True
    poll = select.poll()  # select() cannot watch file descriptors above 1023
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _close_reason(data: bytes) -> str:
    code = int.from_bytes(data[:2]) if len(data) >= 2 else 0
    return f"it closed the connection ({code or 'no code'}) {data[2:200].decode(errors='replace')}".strip()
