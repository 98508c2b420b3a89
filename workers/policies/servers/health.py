"""Health checks of policy servers. The reference server answers between inferences only: silence is not yet a fault."""

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

#: Seconds between two health checks, and timeout of a connection attempt.
ASK_S = 1.0
CONNECT_S = 5.0


class Probe:
    """Periodic health check of one server, in its own thread, because an answer may take long."""

    def __init__(self, address: Address, patience_s: float) -> None:
        """`patience_s`: timeout of one health check."""
        self._address, self._patience_s = address, patience_s
        self._stopped = threading.Event()
        self.answered_at = float("-inf")
        """Time of the last answer, by time.monotonic()."""
        threading.Thread(target=self._check_periodically, name=f"health {address.url}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _check_periodically(self) -> None:
        while not self._stopped.is_set():
            if is_healthy(self._address, self._patience_s):
                self.answered_at = time.monotonic()
            self._stopped.wait(ASK_S)


def is_healthy(address: Address, timeout_s: float) -> bool:
    """Check whether `GET /healthz` is answered with 200."""
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
    """Check whether a running server has been silent for too long. Before its first answer, while it loads, the limit
    is longer."""
    if answered_at < started_at:
        return now - started_at > start_s
    return now - answered_at > silent_s


def listen(settings: Settings, environment: Mapping[str, str]) -> bool:
    """Check whether every server that this host starts accepts connections; the kernel does, even while they infer."""
    if settings.policy_urls:
        return True
    for url in server_urls(settings, len(take_inventory(settings, environment).slots)):
        address = Address(url)
        try:
            socket.create_connection((address.host, address.port), CONNECT_S).close()
        except OSError:
            return False
    return True
