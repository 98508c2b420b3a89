"""Two API workers as real processes, and a judge API at the wire that counts the calls it receives."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from config import keys
from config.profiles import read_profiles
from tasks.composition import create_core
from tasks.jobs.model import Job, JobRequest
from tasks.providers.profile_status import ProfileStatuses
from tests.conftest import ROOT, without_settings
from tests.end_to_end.system import System
from tests.support.judge_api import JudgeApi
from tests.support.programs import Programs, wait_until
from tests.support.redis_server import RedisServer
from workers.development_api.knobs import Knobs

#: The circuit of `main` never opens. `rated` has a rate limit over three seconds. `priced` charges a thousandth for a
#: token of a prompt. The circuit of `careful` opens. No server listens at the URL of `dead`. `replaced` is like `dead`
#: and falls back to `main`.
PROFILES = """
[profiles.main]
base_url = "{url}"
models = ["development", "development-large"]
concurrency = 128
concurrency_start = 128
circuit_failures = 1000

[profiles.rated]
base_url = "{url}"
models = ["development"]
rpm = 3600
window_s = 3
concurrency = 128
concurrency_start = 128
concurrency_min = 128

[profiles.priced]
base_url = "{url}"
models = ["development"]
price_in = 1000
price_out = 0

[profiles.careful]
base_url = "{url}"
models = ["development"]
circuit_open_s = 60

[profiles.dead]
base_url = "http://127.0.0.1:1/v1"
models = ["development"]
circuit_open_s = 60

[profiles.replaced]
base_url = "http://127.0.0.1:1/v1"
models = ["development"]
max_retries = 0
fallback = "main"
"""
WORKERS = 2


class Judging:
    def __init__(self, system: System, api: JudgeApi, profiles: Path) -> None:
        self.system, self.api = system, api
        system.settings = system.settings.model_copy(update={"profiles_file": profiles})
        system.core = create_core(system.settings, system.celery)
        self._board = ProfileStatuses(system.core.state, read_profiles(profiles))
        self._next = 1000
        self.workers = system.launch(
            "api",
            ASSAY_PROFILES_FILE=str(profiles),
            ASSAY_API_WORKERS_MIN=str(WORKERS),
            ASSAY_API_WORKERS_MAX=str(WORKERS),
            ASSAY_API_THREADS="2",  # few, so that both workers take part in any larger job
        )

    def renew(self) -> None:
        """Reset limits, counts and knobs as if no call had been made before. The cache keeps its answers."""
        self.system.wait_for_workers(WORKERS)
        state = self.system.core.state
        # A worker learns of a job's end a moment later; a paused call would be made as soon as its circuit is deleted.
        wait_until(lambda: not state.exists(keys.running("api")), "no worker runs a chunk of an ended job")
        wait_until(lambda: self.api.counts()["in_flight"] == 0, "no call is left")
        if found := state.keys(keys.api_limits("*").replace(":limits", ":*")):
            state.delete(*found)
        self.api.set(**asdict(Knobs()))
        self.api.reset()

    def items(self, number: int) -> list[dict[str, Any]]:
        """Make new items. The API gives each of them the highest score, because the response holds the reference."""
        first, self._next = self._next, self._next + number
        return [
            {"id": str(n), "prompt": "How many?", "response": f"It is {n}.", "reference": str(n)}
            for n in range(first, first + number)
        ]

    def submit(self, items: int | list[dict[str, Any]], **options: Any) -> str:
        given = self.items(items) if isinstance(items, int) else items
        spec = {"profile": "main", "mode": "reference"} | options.pop("spec", {})
        self.system.core.dispatcher.forget_fleet()
        return self.system.core.submitter.submit(JobRequest(kind="judge", items=given, spec=spec, **options))

    def finish(self, job: str) -> Job:
        return self.system.finish(job)

    def judged(self, items: int | list[dict[str, Any]], **options: Any) -> Job:
        return self.finish(self.submit(items, **options))

    def rows(self, job: str | Job) -> list[dict[str, Any]]:
        return self.system.rows(job if isinstance(job, str) else job.id)

    def limit(self, profile: str = "main", **limits: int) -> None:
        self._board.change(profile, limits)

    def wait_for_calls(self, in_flight: int) -> None:
        wait_until(lambda: self.api.counts()["in_flight"] == in_flight, f"{in_flight} calls are in flight")


@contextmanager
def judging(folder: Path) -> Iterator[Judging]:
    """Start the system and the API, for the tests of a module."""
    with (
        without_settings(),
        Programs(ROOT, folder) as programs,
        RedisServer(folder / "state") as state,
        RedisServer(folder / "cache", "cache") as cache,
        JudgeApi(programs.start) as api,
    ):
        profiles = folder / "profiles.toml"
        profiles.write_text(PROFILES.format(url=api.url))
        system = System(programs.start, state, cache, folder / "journal")
        try:
            yield Judging(system, api, profiles)
        finally:
            system.stop()
