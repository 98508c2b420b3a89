"""Control of a running development policy, for tests and benchmarks: its URL, its knobs, its counts."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

READY = re.compile(r"development policy on (ws://\S+:\d+);")


class Handle:
    def __init__(self, url: str, process: "subprocess.Popen[bytes] | None" = None) -> None:
        self.url = url
        self.process = process
        self._root = url.replace("ws://", "http://")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def counts(self) -> dict[str, Any]:
        return self._ask("GET", "/counts")

    def reset(self) -> None:
        self._ask("DELETE", "/counts")

    def set(self, **knobs: object) -> None:
        """Set the given knobs; the others keep their values. Raises ValueError with the server's message."""
        self._ask("PUT", "/knobs", knobs)

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"{self._root}{path}", data, method=method)
            with urllib.request.urlopen(request, timeout=30) as reply:
                document: dict[str, Any] = json.load(reply)
                return document
        except urllib.error.HTTPError as error:
            raise ValueError(error.read().decode()) from error


@contextmanager
def running(**options: object) -> Iterator[Handle]:
    """Run a development policy for the block, with the given knobs, on any free port unless a port is given."""
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in ({"port": 0} | options).items()]
    with NamedTemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.development_policy", *arguments],
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while not (ready := READY.search(said := Path(log.name).read_text())):
                if process.poll() is not None:
                    raise RuntimeError(f"The development policy did not start: {said[-500:]}")
                time.sleep(0.02)
            yield Handle(ready[1], process)
        finally:
            process.kill()  # a wedged server ignores every weaker signal
            process.wait(30)


@contextmanager
def several(number: int, **options: object) -> Iterator[list[Handle]]:
    with ExitStack() as stack:
        yield [stack.enter_context(running(**options)) for _ in range(number)]
