"""Judging through the Assay server: one job of kind `score` with a judge, for one batch of one manager."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from assay.client import Assay, Job
from assay.errors import AssayError, WaitTimeout
from assay.model import Row
from assay.retry import Retry
from assay.rewards.judge_profile import JudgeProfile, find_profile
from assay.rewards.judge_prompt import SCALE
from assay.rewards.length_penalty_config import LengthPenaltyConfig
from assay.rewards.question import LATE, Answer, Question
from assay.submission import scoring

log = logging.getLogger(__name__)

#: How long the server is waited for: little before it has the job, for there is another way; more when it is at work.
REACHING, WORKING = Retry(give_up_after_s=5.0, max_delay_s=1.0), Retry(give_up_after_s=30.0, max_delay_s=2.0)
#: Seconds after its manager's timeout when a job ends by itself, should the trainer be gone.
ORPHANED_S = 30.0
#: Seconds after the timeout for the base scores of what is not judged: a part of what `JudgedBatch` waits for.
BASES_S = 5.0
#: The judge answered, and that was no verdict: asking in another way would not mend it.
_ANSWERED = ("verdict_missing", "reply_refused", "reply_cut", "reply_filtered")
_METADATA = {"client": "length_penalty"}

Keep = Callable[[int, Answer], None]
Report = Callable[[int], None]


class ServerJudge:
    def __init__(self, config: LengthPenaltyConfig, finds_base: bool = False) -> None:
        """`finds_base`: base scores are the server's scorers' to find, and not given."""
        self._config, self._finds_base = config, finds_base
        self._job_id = ""
        self._stopped = False

    def find_profile(self) -> JudgeProfile:
        with self._client(REACHING) as client:
            return find_profile(client.profiles(), self._config)

    def judge(
        self, questions: Sequence[Question], profile: JudgeProfile | None, deadline: float, keep: Keep, report: Report
    ) -> None:
        """Hands every answer to `keep`, until the deadline. Without a profile only the scorers run.

        Raises AssayError when the server cannot do it.
        """
        with self._client(REACHING) as client:
            job = client.submit(
                "score",
                [_item(question) for question in questions],
                self._spec(profile),
                priority="interactive",
                deadline_s=max(1.0, deadline - time.monotonic()) + ORPHANED_S,
                metadata=_METADATA,
            )
        self._job_id = job.id
        with self._client(WORKING) as client:
            job = Job(client, job.view)
            if self._stopped:
                job.cancel()
            rows = self._rows(job, deadline, report)
            if self._finds_base and profile and not self._stopped:
                self._keep_bases(client, questions, rows, keep)
        for row in rows:
            keep(questions[row.index].index, _answer(row))

    def stop(self) -> None:
        """Cancel what is under way. May be called from another thread."""
        self._stopped = True
        if self._job_id:
            try:
                with self._client(REACHING) as client:
                    client.job(self._job_id).cancel()
            except AssayError as error:
                log.info("Job %s could not be cancelled, it ends by its deadline: %s", self._job_id, error)

    def _keep_bases(self, client: Assay, questions: Sequence[Question], rows: Sequence[Row], keep: Keep) -> None:
        """Of what has no row in time: its base score stands, and an item that waits for its judge shows none."""
        done = {row.index for row in rows}
        late = [question for index, question in enumerate(questions) if index not in done]
        if not late:
            return
        try:
            job = client.submit("score", [_item(each) for each in late], self._spec(None), priority="interactive",
                                deadline_s=BASES_S, metadata=_METADATA)  # fmt: skip
            for row in self._rows(job, time.monotonic() + BASES_S, lambda _: None):
                keep(late[row.index].index, Answer(base_score=_answer(row).base_score, error=LATE))
        except AssayError as error:
            log.warning("%d base scores are not known, their responses were not judged in time: %s", len(late), error)

    def _rows(self, job: Job, deadline: float, report: Report) -> list[Row]:
        try:
            for view in job.watch(timeout_s=max(0.0, deadline - time.monotonic())):
                report(view.settled)
        except WaitTimeout:
            rows = [row for row in job.results(wait=False) if row.status]
            job.cancel()
            return rows
        return [row for row in job.results() if row.status != "cancelled"]

    def _spec(self, profile: JudgeProfile | None) -> dict[str, Any]:
        config = self._config
        spec = scoring(config.scorers) if self._finds_base else {}
        if profile:
            spec["judge"] = {
                "profile": profile.name,
                "model": profile.model,
                "mode": "scale",
                "rubric": "weighted",
                "scale": list(SCALE),
                "reward_coefficient": config.reward_coefficient,
                "judge_zero_scores": config.judge_zero_scores,
                "concurrency": config.num_async_workers,
            }
        return spec

    def _client(self, retry: Retry) -> Assay:
        return Assay(self._config.url or None, self._config.token or None, retry=retry)


def _item(question: Question) -> Mapping[str, Any]:
    item: dict[str, Any] = {
        "id": str(question.index),
        "group_id": str(question.group),
        "prompt": question.prompt,
        "response": question.response,
    }
    if question.base_score is not None:
        item["base_score"] = question.base_score
    if question.reference is not None:
        item["reference"] = question.reference
    return item


def _answer(row: Row) -> Answer:
    error = f"{row.error.type}: {row.error.message}" if row.error else "" if row.valid else row.status
    base = row.parts.get("base", row.score if row.valid else None)  # scorers alone: their score is the base
    unheard = not row.valid and (row.error is None or row.error.type not in _ANSWERED)
    return Answer(row.parts.get("judge") if row.valid else None, base, error, unheard)
