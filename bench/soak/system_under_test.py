"""The system under test: starts a private system as `make up` does, and names its processes by role."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from redis import Redis
from redis.exceptions import RedisError

from workers.development_api.control import Handle
from workers.processes.ports import free_port, free_ports

ROOT = Path(__file__).parent.parent.parent
#: Timeouts for the start and the stop of the system, in seconds.
READY_S, STOP_S = 180.0, 90.0
NODE = "soak"
SLOTS = 3
#: TTLs of ended jobs, idempotency keys and cached answers, in seconds: short, so that keys expire while jobs run.
JOB_TTL_S, KEY_TTL_S, CACHE_TTL_S = 60, 150, 60
#: Number of items above which a job is stored in files.
STORED_ITEMS = 1000
MODEL = "tiny"
REDIS = "redis-server"
#: Seconds after the stop until every process must have ended.
GONE_S = 15.0

_WRITE_MODEL = """
import sys
from pathlib import Path
from addition import pretrain, write
write(pretrain(60, 1, most_steps=100), Path(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A process and its role: `device 1`, `device 1 child`, `web`, ..."""

    role: str
    process: psutil.Process

    @property
    def name(self) -> str:
        """Role and process id, which differ for each start."""
        return f"{self.role} #{self.process.pid}"


class System:
    """A private system on free ports, with its data in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data, self.log = folder / "data", folder / "up.log"
        self.storage, self.temporary = self.data / "storage", folder / "tmp"
        self.port, api_port = free_port(), free_port()
        self.url, self.api = f"http://127.0.0.1:{self.port}", Handle(f"http://127.0.0.1:{api_port}")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("ASSAY_")} | {
            "ASSAY_PORT": str(self.port),
            "ASSAY_FLOWER_PORT": str(free_port()),
            "ASSAY_DEVELOPMENT_API_PORT": str(api_port),
            "ASSAY_POLICY_PORT": str(free_ports(SLOTS)),
            "ASSAY_NODE": NODE,
            "ASSAY_SLOTS": f"cpu:{SLOTS}",
            "ASSAY_WEB_PROCESSES": "2",
            "ASSAY_WEB_THREADS": "64",
            "ASSAY_SCALE_DOWN_IDLE_S": "15",
            "ASSAY_STOP_GRACE_S": "15",
            "ASSAY_JOB_TTL_S": str(JOB_TTL_S),
            "ASSAY_IDEMPOTENCY_TTL_S": str(KEY_TTL_S),
            "ASSAY_CACHE_TTL_S": str(CACHE_TTL_S),
            "ASSAY_STORED_ITEMS": str(STORED_ITEMS),
            "ASSAY_POLICY_SILENT_S": "5",
            "ASSAY_POLICY_REPLY_S": "10",
            "ASSAY_POLICY_WAIT_S": "60",
            "ASSAY_POLICY_EPISODES": "2",
            "ASSAY_EMBEDDED_CACHE_MB": "32",
            "ASSAY_BENCHMARKS": "",  # no schedule: a nightly benchmark would add jobs that no load client submitted
            "ASSAY_DATA_DIR": str(self.data),
            "TMPDIR": str(self.temporary),
            "PYTHONUNBUFFERED": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: dict[int, psutil.Process] = {}
        self._names: dict[psutil.Process, str] = {}
        self.state: Redis
        self.cache: Redis

    def start(self) -> None:
        """Start the system and wait until it is ready."""
        self.temporary.mkdir(parents=True)
        paths = os.environ | {"PYTHONPATH": str(ROOT / "examples"), "TMPDIR": str(self.folder)}
        argv = [sys.executable, "-W", "ignore", "-c", _WRITE_MODEL, str(self.data / "models" / MODEL)]
        subprocess.run(argv, env=paths, check=True, capture_output=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "workers.up"],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while b"Assay is up" not in self.log.read_bytes():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The system did not start. Its log is {self.log}.")
            time.sleep(0.2)
        variables = dict(
            line.removeprefix("export ").split("=", 1) for line in (self.data / "env").read_text().splitlines()
        )
        self.state, self.cache = (
            Redis.from_url(variables[f"ASSAY_{name}_URL"], decode_responses=True) for name in ("REDIS", "CACHE")
        )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def parts(self) -> list[Part]:
        """Return the processes that run now."""
        if not self.is_running:
            return []
        assert self._process
        top = psutil.Process(self._process.pid)
        found = [Part("up", top)]
        for process in top.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    self._seen[process.pid] = process
                    found.append(Part(self._role(process), process))
        return found

    def _role(self, process: psutil.Process) -> str:
        """Return the role, by command line. The role of a process younger than two seconds may still change (fork,
        exec)."""
        if name := self._names.get(process):
            return name
        own, above = process.cmdline(), (process.parent() or process).cmdline()
        name = role_of(own, above)
        if name == REDIS:  # its process title lacks the folder
            name = Path(process.cwd()).name
        if time.time() - process.create_time() > 2:
            self._names[process] = name
        return name

    def stop(self) -> list[str]:
        """Stop the system as Ctrl-C does. Kills remaining processes and returns their descriptions."""
        if self._process is None:
            return []
        self.parts()
        left = []
        if self.is_running:
            self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            left.append(f"`workers.up` did not stop within {STOP_S:.0f} s")
            self._process.kill()
            self._process.wait()
        deadline = time.monotonic() + GONE_S
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                left.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
                process.kill()
        return left

    def _alive(self) -> list[psutil.Process]:
        found = []
        for process in self._seen.values():
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def role_of(own: list[str], above: list[str]) -> str:
    """Return the role of a process, by its command line and that of its parent."""
    line, parent = " ".join(own), " ".join(above)
    if "redis-server" in line:
        return REDIS
    if "workers.main" in own:
        name = f"{_after('workers.main', own)} {_after('--index', own)}"
        return f"{name} child" if "workers.main" in parent else name
    if "workers.launch" in own:
        return f"launcher {_after('workers.launch', own)}"
    if "gunicorn" in line:
        return "web" if "gunicorn" in parent else "gunicorn"
    for mark, name in (
        ("workers.development_api", "development API"),
        ("workers.development_policy", f"policy server {''.join(own[-1:])}"),
        ("workers.environments", "simulator"),
        ("tasks.scoring.isolated_process", "scorer"),
        ("flower", "flower"),
        ("workers.up", "up"),
    ):
        if mark in line:
            return name
    return line[:60] or "(nameless)"


def _after(mark: str, own: list[str]) -> str:
    """Return the argument after `mark`; empty if it is missing, as in a process that is just starting."""
    return "".join(own[own.index(mark) + 1 :][:1]) if mark in own else ""


@contextmanager
def tolerate_outage() -> Iterator[None]:
    """Ignore errors of Redis inside the block: the caller asks again later."""
    with suppress(RedisError, OSError):
        yield
