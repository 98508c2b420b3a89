"""Adapter for Assay: a judge job with all questions. Unlike the other peers, Assay renders its prompts itself."""

from collections.abc import Sequence
from typing import Any

from assay.errors import WaitTimeout

from bench.peers.adapters.assay_system import WORKERS, AssaySystem
from bench.peers.workload.judge_questions import MODEL, SPEC, Question

PROFILE = """
[profiles.main]
base_url = "{url}"
models = ["{model}"]
concurrency = {in_flight}
concurrency_start = {in_flight}
"""


class AssayJudging(AssaySystem):
    pool = "api"

    @property
    def resources(self) -> str:
        return f"web, launcher, {WORKERS} API workers, {self.setup.in_flight} calls"

    def settings(self) -> dict[str, str]:
        profiles = self.setup.folder / "profiles.toml"
        profiles.write_text(PROFILE.format(url=self.setup.api_url, model=MODEL, in_flight=self.setup.in_flight))
        number = str(WORKERS)
        return {
            "ASSAY_PROFILES_FILE": str(profiles),
            "ASSAY_API_WORKERS_MIN": number,
            "ASSAY_API_WORKERS_MAX": number,
        }

    def answer(self, questions: Sequence[Question], timeout_s: float) -> list[Any]:
        options: dict[str, Any] = {"priority": "interactive"} if len(questions) == 1 else {}
        job = self.client.submit("judge", [question.item for question in questions], SPEC, wait_s=30, **options)
        try:
            job.wait(timeout_s, progress=False, raise_on_failure=False)
        except WaitTimeout:
            job.cancel()
        return list(job.scores().values)
