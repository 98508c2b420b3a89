"""Control of a running development API, for tests and benchmarks: its URL, its knobs, its counts."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlencode

READY = re.compile(r"development API on (http://\S+:\d+)/v1")


def command(**knobs: object) -> list[str]:
    """Return the interpreter's arguments that start a development API on a free port."""
    options = [f"--{name.replace('_', '-')}={value}" for name, value in knobs.items()]
    return ["-m", "workers.development_api", "--port=0", *options]


class Handle:
    def __init__(self, root: str) -> None:
        self._root = root
        self.url = f"{root}/v1"
        """The `base_url` for clients."""

    def counts(self, *windows_s: float, times: int = 0) -> dict[str, Any]:
        query = urlencode([*(("window_s", window_s) for window_s in windows_s), ("times", times)])
        return self._ask("GET", f"/counts?{query}")

    @property
    def calls(self) -> int:
        calls: int = self.counts()["calls"]
        return calls

    def peak(self, window_s: float) -> int:
        """Return the maximum number of calls accepted in any window of this length."""
        accepted: int = self.counts(window_s)["peaks"][0]["accepted"]
        return accepted

    def reset(self) -> None:
        self._ask("DELETE", "/counts")

    def knobs(self) -> dict[str, Any]:
        return self._ask("GET", "/knobs")

    def set(self, **knobs: object) -> dict[str, Any]:
        """Set the given knobs; the others keep their values. Raises ValueError with the API's message."""
        return self._ask("PUT", "/knobs", knobs)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the replies during the block: new calls are accepted, and answered afterwards."""
        self.set(hold=True)
        try:
            yield
        finally:
            self.set(hold=False)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._root}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                document: dict[str, Any] = json.load(reply)
                return document
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]["message"]) from error


@contextmanager
def running(**knobs: object) -> Iterator[Handle]:
    """Run a development API for the block."""
    with NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, *command(**knobs)],
            env=os.environ | {"ASSAY_LOG_LEVEL": "INFO"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while not (ready := READY.search(said := Path(log.name).read_text())):
                if process.poll() is not None:
                    raise RuntimeError(f"The development API did not start: {said[-500:]}")
                time.sleep(0.02)
            yield Handle(ready[1])
        finally:
            process.terminate()
            process.wait(30)
