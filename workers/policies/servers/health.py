"""Whether policy servers answer. The reference server does between inferences only: silence is not yet a fault."""

import http.client
import logging
import socket
import threading
import time
from collections.abc import Mapping

from config.settings import Settings
from workers.devices.discovery import take_inventory
from workers.policies.address import Address
from workers.policies.servers.addresses import server_urls

log = logging.getLogger(__name__)

#: Seconds between two questions, and for a connection to be refused or made.
ASK_S = 1.0
CONNECT_S = 5.0


class Probe:
    """Asks one server for its health, again and again, in a thread of its own: one answer may take long."""

    def __init__(self, address: Address, patience_s: float) -> None:
        """`patience_s`: how long one question waits for its answer."""
        self._address, self._patience_s = address, patience_s
        self._stopped = threading.Event()
        self.answered_at = float("-inf")
        """When it last did, by time.monotonic()."""
        threading.Thread(target=self._ask_on, name=f"health {address.url}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _ask_on(self) -> None:
        while not self._stopped.is_set():
            if is_healthy(self._address, self._patience_s):
                self.answered_at = time.monotonic()
            self._stopped.wait(ASK_S)


def is_healthy(address: Address, timeout_s: float) -> bool:
    """Whether `GET /healthz` is answered with 200."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException) as error:
        log.debug("%s does not answer: %s", address.url, error)
        return False
    finally:
        connection.close()


def is_wedged(now: float, started_at: float, answered_at: float, start_s: float, silent_s: float) -> bool:
    """Whether a running server has been silent for too long: longer before its first answer, while it loads."""
    if answered_at < started_at:
        return now - started_at > start_s
    return now - answered_at > silent_s


def listen(settings: Settings, environment: Mapping[str, str]) -> bool:
    """Whether all servers that this host starts take connections; they do, in the kernel, even while they infer."""
    if settings.policy_urls:
        return True
    for url in server_urls(settings, len(take_inventory(settings, environment).slots)):
        address = Address(url)
        try:
            socket.create_connection((address.host, address.port), CONNECT_S).close()
        except OSError:
            return False
    return True
