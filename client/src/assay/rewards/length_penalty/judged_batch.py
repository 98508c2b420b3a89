"""A batch in flight: sends its questions to the server or to the API, and composes the rewards at the end.

Judging runs in a separate thread. `collect` waits at most `GRACE_S` longer than the batch's timeout, even if that
thread hangs, and uses the answers that exist by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from assay.errors import AssayError, InvalidRequest, Unauthorized
from assay.rewards.length_penalty.base_scores import BaseScores
from assay.rewards.length_penalty.composition import ScoredResponse, compose
from assay.rewards.length_penalty.config import LengthPenaltyConfig
from assay.rewards.length_penalty.dataproto import Sample, reward_tensor
from assay.rewards.length_penalty.direct_judge import DirectJudge
from assay.rewards.length_penalty.judge_profile import JudgeProfile, ProfileMissing, host_of
from assay.rewards.length_penalty.judge_workers import JudgeWorkers, Stoppable
from assay.rewards.length_penalty.question import TIMED_OUT, Answer, Question, as_reference
from assay.rewards.length_penalty.server_judge import ServerJudge

log = logging.getLogger(__name__)

#: Seconds after the timeout to fetch the existing results.
GRACE_S = 10.0


class JudgedBatch:
    def __init__(
        self,
        config: LengthPenaltyConfig,
        samples: Sequence[Sample],
        base: BaseScores | None,
        responses: Any,
        num_examine: int,
    ) -> None:
        """`base` is None if the server's scorers compute the base scores."""
        self._config, self._samples = config, samples
        self._server_scores_base, self._extra = base is None, base.extra if base else {}
        self._bases: list[float | None] = list(base.scores) if base else [None] * len(samples)
        self._responses, self._num_examine = responses, num_examine
        self._deadline = time.monotonic() + config.timeout_seconds
        self._questions = {each.index: each for each in self._make_questions()}
        self._answers: dict[int, Answer] = {}
        self._judge: Stoppable | None = None
        self._stopped = False
        self._error: BaseException | None = None
        self._finished = threading.Event()
        self._lock = threading.Lock()
        self._result: dict[str, Any] | None = None

    # --- the handle of the trainer ---

    @property
    def done(self) -> bool:
        return self._finished.is_set() or time.monotonic() >= self._deadline + GRACE_S

    def collect(self, return_dict: bool = False) -> Any:
        """Wait for the rewards, and return the reward tensor or `{"reward_tensor", "reward_extra_info"}`. Idempotent.

        Raise ProfileMissing, or AssayError if the server should have computed the base scores and could not.
        """
        self._finished.wait(max(0.0, self._deadline + GRACE_S - time.monotonic()))
        if self._error is not None:
            raise self._error
        with self._lock:
            if self._result is None:
                self._result = self._compose()
        return self._result if return_dict else self._result["reward_tensor"]

    # --- judging ---

    def start(self, workers: JudgeWorkers) -> None:
        if not self._questions:
            self._finished.set()
            return
        workers.register(self)
        threading.Thread(target=self._run, args=(workers,), name="assay-rewards", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        if self._judge is not None:
            self._judge.stop()

    def _make_questions(self) -> list[Question]:
        """Return a question for each response that needs a judge or the server's scorers."""
        questions = []
        for index, (sample, base) in enumerate(zip(self._samples, self._bases)):
            if not self._server_scores_base and (
                not self._config.enable_openai_reward
                or base is None
                or (base == 0 and not self._config.judge_zero_scores)
            ):
                continue
            reference = as_reference(sample.ground_truth) if self._server_scores_base else None
            questions.append(Question(index, sample.prompt, sample.response, reference, sample.group, base))
        return questions

    def _run(self, workers: JudgeWorkers) -> None:
        try:
            self._judge_all(workers)
        except Exception as error:  # noqa: BLE001  # raised by `collect`, in the trainer's thread
            self._error = error
        finally:
            workers.unregister(self)
            self._finished.set()

    def _judge_all(self, workers: JudgeWorkers) -> None:
        reason: AssayError | str
        try:
            self._judge_by_server(workers.profile() if self._config.enable_openai_reward else None)
            unjudged = self._unjudged()
            reason = self._answers[unjudged[0].index].error if unjudged else ""
        except ProfileMissing:
            raise
        except AssayError as error:
            if self._server_scores_base:
                raise
            unjudged, reason = list(self._questions.values()), error
        if not unjudged or self._stopped or time.monotonic() >= self._deadline:
            return
        if self._config.api_key and self._config.api_endpoint:
            self._judge_directly(unjudged, reason)
            return
        if isinstance(reason, (InvalidRequest, Unauthorized)):  # a permanent error: a later batch would fail too
            raise reason
        log.warning(
            "The Assay server cannot judge %d responses (%s), and there is no api_key with an api_endpoint to call: "
            "OpenAI quality evaluation is skipped",
            len(unjudged),
            reason,
        )
        for question in unjudged:
            self._answers.setdefault(question.index, Answer(error=str(reason) if workers.server_was_reached else ""))

    def _judge_by_server(self, profile: JudgeProfile | None) -> None:
        questions = list(self._questions.values())
        judge = self._judge = ServerJudge(self._config, self._server_scores_base)
        if self._stopped:  # stopped during the lookup of the profile, before `stop` could reach the judge
            return
        if profile is None:
            judge.judge(questions, None, self._deadline, self._store, lambda _: None)
            return
        log.info("Using asynchronous OpenAI workers to evaluate %d responses", len(questions))
        judge.judge(questions, profile, self._deadline, self._store, ProgressLog(len(questions)))
        answered = sum(not answer.error for answer in self._answers.values())
        log.info("Completed asynchronous OpenAI quality evaluation for %d responses", answered)

    def _unjudged(self) -> list[Question]:
        """Return the questions that the server could not judge. Skip responses without a base score: their reward is 0
        even with a verdict."""
        return [
            self._questions[index]
            for index, answer in self._answers.items()
            if answer.judge_unavailable and self._bases[index] is not None
        ]

    def _judge_directly(self, questions: Sequence[Question], reason: object) -> None:
        host = host_of(self._config.api_endpoint)
        log.warning(
            "The Assay server cannot judge %d responses (%s): calling %s synchronously instead",
            len(questions),
            reason,
            host,
        )
        for question in questions:
            self._answers.pop(question.index, None)  # a question without an answer at the end counts as timed out
        judge = self._judge = DirectJudge(self._config)
        if not self._stopped:
            judge.judge(questions, self._deadline, self._store, ProgressLog(len(questions)))

    def _store(self, index: int, answer: Answer) -> None:
        if self._bases[index] is None:
            self._bases[index] = answer.base_score
        self._answers[index] = answer

    # --- rewards ---

    def _compose(self) -> dict[str, Any]:
        answers = dict(self._answers)  # a copy, as the thread may still be adding answers
        self._log_failures(answers)
        responses = [self._scored(index, sample, answers.get(index)) for index, sample in enumerate(self._samples)]
        extra = {**self._extra, **compose(self._config, responses)}
        self._print_samples(extra)
        tensor = reward_tensor(self._responses, extra["response_length"], extra["reward"])
        return {"reward_tensor": tensor, "reward_extra_info": extra}

    def _scored(self, index: int, sample: Sample, answer: Answer | None) -> ScoredResponse:
        base = self._bases[index]
        if index not in self._questions:
            return ScoredResponse(sample.group, sample.length, base)
        valid = answer is not None and not answer.error
        judged = answer.judge_score if answer and answer.judge_score is not None else 0.0
        return ScoredResponse(sample.group, sample.length, base, judged, valid)

    def _log_failures(self, answers: dict[int, Answer]) -> None:
        """Log the cause of each missing verdict."""
        by_error: dict[str, list[int]] = {}
        for index, question in self._questions.items():
            answer = answers.get(index)
            if (answer is None and not self._stopped) or (answer is not None and answer.error == TIMED_OUT):
                log.warning("Timeout waiting for OpenAI API result for request %s", question.request_hash(self._config))
            elif answer is not None and answer.error:
                by_error.setdefault(answer.error, []).append(index)
        for error, indices in by_error.items():
            log.warning("No verdict for responses %s: %s", ", ".join(map(str, indices)), error)

    def _print_samples(self, extra: dict[str, list[Any]]) -> None:
        """Print the first `num_examine` samples of each data source."""
        printed: dict[Any, int] = {}
        for index, sample in enumerate(self._samples):
            if printed.get(sample.data_source, 0) < self._num_examine:
                printed[sample.data_source] = printed.get(sample.data_source, 0) + 1
                print("[prompt]", sample.prompt)
                print("[response]", sample.response)
                print("[ground_truth]", sample.ground_truth)
                for name, values in extra.items():
                    print(f"[{name}]", values[index])


class ProgressLog:
    """Logs a line when a quarter, a half and three quarters of the responses are settled."""

    def __init__(self, total: int) -> None:
        self._total, self._logged = total, 0

    def __call__(self, settled: int) -> None:
        quarter = 4 * settled // self._total
        if self._logged < quarter < 4:
            self._logged = quarter
            share = 100 * settled / self._total
            log.info("OpenAI quality evaluation progress: %.1f%% (%d/%d)", share, settled, self._total)
