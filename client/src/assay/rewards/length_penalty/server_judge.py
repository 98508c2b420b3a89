"""Judge through the Assay server: submits a job of kind `score` with a judge for a batch of a manager."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from assay.client import Assay, Job
from assay.errors import AssayError, WaitTimeout
from assay.model import Row
from assay.retry import Retry
from assay.rewards.length_penalty.config import LengthPenaltyConfig
from assay.rewards.length_penalty.judge_profile import JudgeProfile, find_profile
from assay.rewards.length_penalty.judge_prompt import SCALE
from assay.rewards.length_penalty.question import TIMED_OUT, Answer, Question
from assay.submission import score_spec

log = logging.getLogger(__name__)

#: Retry policy until the server has the job; short, because a direct call is the alternative.
SUBMIT_RETRY = Retry(give_up_after_s=5.0, max_delay_s=1.0)
#: Retry policy while the server works on the job.
POLL_RETRY = Retry(give_up_after_s=30.0, max_delay_s=2.0)
#: Seconds after the manager's timeout at which the server ends the job itself, in case the trainer process has died.
ORPHAN_TIMEOUT_S = 30.0
#: Seconds after the timeout to compute the base scores of unjudged responses; less than the grace of `JudgedBatch`.
BASE_SCORES_TIMEOUT_S = 5.0
#: Error types of a judge that replied without a verdict: a direct call would give the same reply.
_FINAL_ERRORS = ("verdict_missing", "reply_refused", "reply_cut", "reply_filtered")
_METADATA = {"client": "length_penalty"}

StoreAnswer = Callable[[int, Answer], None]
ReportProgress = Callable[[int], None]


class ServerJudge:
    def __init__(self, config: LengthPenaltyConfig, server_scores_base: bool = False) -> None:
        """`server_scores_base`: the server's scorers compute the base scores, instead of the trainer."""
        self._config, self._server_scores_base = config, server_scores_base
        self._job_id = ""
        self._stopped = False

    def find_profile(self) -> JudgeProfile:
        with self._client(SUBMIT_RETRY) as client:
            return find_profile(client.profiles(), self._config)

    def has_ready_worker(self) -> bool:
        """Return whether the server reports a ready API worker; False if it does not report its workers."""
        try:
            with self._client(SUBMIT_RETRY) as client:
                return any(row.get("pool") == "api" and row.get("state") == "ready" for row in client.workers())
        except AssayError:
            return False

    def judge(
        self,
        questions: Sequence[Question],
        profile: JudgeProfile | None,
        deadline: float,
        store: StoreAnswer,
        report_progress: ReportProgress,
    ) -> None:
        """Submit the questions, and call `store` with each answer that arrives before the deadline. Without a profile
        only the scorers run.

        Raise AssayError if the server cannot run the job.
        """
        with self._client(SUBMIT_RETRY) as client:
            job = client.submit(
                "score",
                [_item(question) for question in questions],
                self._spec(profile),
                priority="interactive",
                deadline_s=max(1.0, deadline - time.monotonic()) + ORPHAN_TIMEOUT_S,
                metadata=_METADATA,
            )
        self._job_id = job.id
        with self._client(POLL_RETRY) as client:
            job = Job(client, job.view)
            if self._stopped:
                job.cancel()
            rows = self._rows(job, deadline, report_progress)
            if self._server_scores_base and profile and not self._stopped:
                self._store_late_base_scores(client, questions, rows, store)
        for row in rows:
            store(questions[row.index].index, _answer(row))

    def stop(self) -> None:
        """Cancel the job in flight. Thread-safe."""
        self._stopped = True
        if self._job_id:
            try:
                with self._client(SUBMIT_RETRY) as client:
                    client.job(self._job_id).cancel()
            except AssayError as error:
                log.info("Job %s could not be cancelled, it ends at its deadline: %s", self._job_id, error)

    def _store_late_base_scores(
        self, client: Assay, questions: Sequence[Question], rows: Sequence[Row], store: StoreAnswer
    ) -> None:
        """Compute the base scores of the questions that have no row at the deadline. It takes a second job, because an
        item that waits for its judge does not show its base score."""
        done = {row.index for row in rows}
        late = [question for index, question in enumerate(questions) if index not in done]
        if not late:
            return
        try:
            job = client.submit(
                "score",
                [_item(each) for each in late],
                self._spec(None),
                priority="interactive",
                deadline_s=BASE_SCORES_TIMEOUT_S,
                metadata=_METADATA,
            )
            for row in self._rows(job, time.monotonic() + BASE_SCORES_TIMEOUT_S, lambda _: None):
                store(late[row.index].index, Answer(base_score=_answer(row).base_score, error=TIMED_OUT))
        except AssayError as error:
            log.warning("%d responses were not judged in time, and have no base score: %s", len(late), error)

    def _rows(self, job: Job, deadline: float, report_progress: ReportProgress) -> list[Row]:
        try:
            for view in job.watch(timeout_s=max(0.0, deadline - time.monotonic())):
                report_progress(view.settled)
        except WaitTimeout:
            rows = [row for row in job.results(wait=False) if row.status]
            job.cancel()
            return rows
        return [row for row in job.results() if row.status != "cancelled"]

    def _spec(self, profile: JudgeProfile | None) -> dict[str, Any]:
        config = self._config
        spec = score_spec(config.scorers) if self._server_scores_base else {}
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
    base = row.parts.get("base", row.score if row.valid else None)  # with scorers alone, their score is the base score
    judge_unavailable = not row.valid and (row.error is None or row.error.type not in _FINAL_ERRORS)
    return Answer(row.parts.get("judge") if row.valid else None, base, error, judge_unavailable)
