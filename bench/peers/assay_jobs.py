"""Assay: a judge job for all questions. Unlike the others it renders its prompts itself."""

from collections.abc import Sequence
from typing import Any

from assay.errors import WaitTimeout

from bench.peers.assay_system import WORKERS, AssaySystem
from bench.peers.questions import MODEL, SPEC, Question

PROFILE = """
[profiles.main]
base_url = "{url}"
models = ["{model}"]
concurrency = {in_flight}
concurrency_start = {in_flight}
"""


class AssayJobs(AssaySystem):
    pool = "api"

    @property
    def given(self) -> str:
        return f"web, launcher, {WORKERS} API workers, {self.place.in_flight} calls"

    def settings(self) -> dict[str, str]:
        profiles = self.place.folder / "profiles.toml"
        profiles.write_text(PROFILE.format(url=self.place.api_url, model=MODEL, in_flight=self.place.in_flight))
        number = str(WORKERS)
        return {
            "ASSAY_PROFILES_FILE": str(profiles),
            "ASSAY_API_WORKERS_MIN": number,
            "ASSAY_API_WORKERS_MAX": number,
        }

    def answer(self, asked: Sequence[Question], patience_s: float) -> list[Any]:
        options: dict[str, Any] = {"priority": "interactive"} if len(asked) == 1 else {}
        job = self.client.submit("judge", [question.item for question in asked], SPEC, wait_s=30, **options)
        try:
            job.wait(patience_s, progress=False, raise_on_failure=False)
        except WaitTimeout:
            job.cancel()
        return list(job.scores().values)
