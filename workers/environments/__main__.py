"""Process of one simulator: `python -m workers.environments FD`, where FD is its end of a socket pair.

`workers.environments.simulator_process` starts it; it ends when its owner ends.
"""

import os
import socket
import sys
import threading
import time
from typing import Any

from tasks.episodes.model import EpisodeSpec
from tasks.errors import AssayError
from workers.environments.catalogue import make_environment
from workers.environments.messages import receive, send
from workers.environments.simulator import LocalSimulator, as_failure


class Session:
    """A simulator, created for the first episode's environment and reused for episodes with the same environment."""

    def __init__(self) -> None:
        self._simulator: LocalSimulator | None = None
        self._options: object = None

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        match message:
            case {"do": "start", "spec": document}:
                spec = EpisodeSpec.model_validate_json(document)
                start = self._simulator_for(spec).start(spec)
                return {name: getattr(start, name) for name in start.__slots__}
            case {"do": "advance", "actions": actions} if self._simulator:
                progress = self._simulator.advance(actions)
                return {name: getattr(progress, name) for name in progress.__slots__}
            case {"do": "video"} if self._simulator:
                return {"video": self._simulator.video()}
        raise ValueError(f"invalid message: {sorted(message)}")

    def _simulator_for(self, spec: EpisodeSpec) -> LocalSimulator:
        if self._simulator is None or self._options != spec.environment:
            if self._simulator:
                self._simulator.close()
            self._simulator, self._options = LocalSimulator(make_environment(spec.environment)), spec.environment
        return self._simulator


def serve(sock: socket.socket) -> None:
    session = Session()
    while True:
        try:
            message = receive(sock)
        except (EOFError, ConnectionError):
            return
        try:
            answer = session.answer(message)
        except AssayError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        except Exception as error:  # noqa: BLE001  # simulators raise any error; the owner gets it
            failure = as_failure(error)
            answer = {"error": type(failure).__name__, "message": str(failure)}
        send(sock, answer)


def _end_with(parent: int) -> None:
    """End this process with its owner: a simulator that is busy when its owner is killed does not read its socket."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


def main() -> int:
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        serve(sock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
