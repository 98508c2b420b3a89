"""One batch on its way: what is asked of whom, until when, and the rewards that come of it.

Judging runs in a thread of its own. `collect` never waits much longer than the batch's timeout, whatever that thread
does: what is there by then is used.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

from assay.errors import AssayError, InvalidRequest, Unauthorized
from assay.rewards.base_scores import BaseScores
from assay.rewards.composition import Part, compose
from assay.rewards.dataproto import Sample, reward_tensor
from assay.rewards.direct_judge import DirectJudge
from assay.rewards.judge_profile import JudgeProfile, ProfileMissing, host_of
from assay.rewards.judge_workers import JudgeWorkers, Stoppable
from assay.rewards.length_penalty_config import LengthPenaltyConfig
from assay.rewards.question import LATE, Answer, Question, as_reference
from assay.rewards.server_judge import ServerJudge

log = logging.getLogger(__name__)

#: Seconds after the timeout for fetching what is there.
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
        """`base` is None where the server finds the base scores."""
        self._config, self._samples = config, samples
        self._finds_base, self._extra = base is None, base.extra if base else {}
        self._bases: list[float | None] = list(base.scores) if base else [None] * len(samples)
        self._responses, self._num_examine = responses, num_examine
        self._deadline = time.monotonic() + config.timeout_seconds
        self._questions = {each.index: each for each in self._asked()}
        self._answers: dict[int, Answer] = {}
        self._judge: Stoppable | None = None
        self._stopped = False
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._result: dict[str, Any] | None = None

    # --- what a trainer sees ---

    @property
    def done(self) -> bool:
        return self._over.is_set() or time.monotonic() >= self._deadline + GRACE_S

    def collect(self, return_dict: bool = False) -> Any:
        """The reward tensor, or `{"reward_tensor", "reward_extra_info"}`. May be called again.

        Raises ProfileMissing, and AssayError when the base scores were the server's to find and it could not.
        """
        self._over.wait(max(0.0, self._deadline + GRACE_S - time.monotonic()))
        if self._error is not None:
            raise self._error
        with self._lock:
            if self._result is None:
                self._result = self._composed()
        return self._result if return_dict else self._result["reward_tensor"]

    # --- judging ---

    def start(self, workers: JudgeWorkers) -> None:
        if not self._questions:
            self._over.set()
            return
        workers.enter(self)
        threading.Thread(target=self._run, args=(workers,), name="assay-rewards", daemon=True).start()

    def stop(self) -> None:
        self._stopped = True
        if self._judge is not None:
            self._judge.stop()

    def _asked(self) -> list[Question]:
        """The responses that have to go somewhere: to the judge, or to the server's scorers first."""
        asked = []
        for index, (sample, base) in enumerate(zip(self._samples, self._bases)):
            if not self._finds_base and (
                not self._config.enable_openai_reward
                or base is None
                or (base == 0 and not self._config.judge_zero_scores)
            ):
                continue
            reference = as_reference(sample.ground_truth) if self._finds_base else None
            asked.append(Question(index, sample.prompt, sample.response, reference, sample.group, base))
        return asked

    def _run(self, workers: JudgeWorkers) -> None:
        try:
            self._ask(workers)
        except Exception as error:  # noqa: BLE001  # raised where somebody waits for it
            self._error = error
        finally:
            workers.leave(self)
            self._over.set()

    def _ask(self, workers: JudgeWorkers) -> None:
        reason: AssayError | str
        try:
            self._through_the_server(workers.profile() if self._config.enable_openai_reward else None)
            left = self._unheard()
            reason = self._answers[left[0].index].error if left else ""
        except ProfileMissing:
            raise
        except AssayError as error:
            if self._finds_base:
                raise
            left, reason = list(self._questions.values()), error
        if not left or self._stopped or time.monotonic() >= self._deadline:
            return
        if self._config.api_key and self._config.api_endpoint:
            self._directly(left, reason)
            return
        if isinstance(reason, (InvalidRequest, Unauthorized)):  # a mistake: it does not pass by itself
            raise reason
        log.warning(
            "The Assay server cannot judge %d responses (%s), and there is no api_key with an api_endpoint to call: "
            "OpenAI quality evaluation is skipped",
            len(left),
            reason,
        )
        for question in left:
            self._answers.setdefault(question.index, Answer(error=str(reason) if workers.were_reached else ""))

    def _through_the_server(self, profile: JudgeProfile | None) -> None:
        questions = list(self._questions.values())
        judge = self._judge = ServerJudge(self._config, self._finds_base)
        if self._stopped:  # while the profile was looked for, when there was no judge to be told
            return
        if profile is None:
            judge.judge(questions, None, self._deadline, self._keep, lambda _: None)
            return
        log.info("Using asynchronous OpenAI workers to evaluate %d responses", len(questions))
        judge.judge(questions, profile, self._deadline, self._keep, Progress(len(questions)))
        answered = sum(not answer.error for answer in self._answers.values())
        log.info("Completed asynchronous OpenAI quality evaluation for %d responses", answered)

    def _unheard(self) -> list[Question]:
        """What the server could not have judged. Without a base score there is nothing that a verdict would add to."""
        return [
            self._questions[index]
            for index, answer in self._answers.items()
            if answer.unheard and self._bases[index] is not None
        ]

    def _directly(self, questions: Sequence[Question], reason: object) -> None:
        place = host_of(self._config.api_endpoint)
        log.warning(
            "The Assay server cannot judge %d responses (%s): calling %s synchronously instead",
            len(questions),
            reason,
            place,
        )
        for question in questions:
            self._answers.pop(question.index, None)  # what has none in the end was not judged in time
        judge = self._judge = DirectJudge(self._config)
        if not self._stopped:
            judge.judge(questions, self._deadline, self._keep, Progress(len(questions)))

    def _keep(self, index: int, answer: Answer) -> None:
        if self._bases[index] is None:
            self._bases[index] = answer.base_score
        self._answers[index] = answer

    # --- rewards ---

    def _composed(self) -> dict[str, Any]:
        answers = dict(self._answers)  # the thread may still be at it
        self._tell(answers)
        parts = [self._part(index, sample, answers.get(index)) for index, sample in enumerate(self._samples)]
        extra = {**self._extra, **compose(self._config, parts)}
        self._print_some(extra)
        tensor = reward_tensor(self._responses, extra["response_length"], extra["reward"])
        return {"reward_tensor": tensor, "reward_extra_info": extra}

    def _part(self, index: int, sample: Sample, answer: Answer | None) -> Part:
        base = self._bases[index]
        if index not in self._questions:
            return Part(sample.group, sample.length, base)
        valid = answer is not None and not answer.error
        judged = answer.judge_score if answer and answer.judge_score is not None else 0.0
        return Part(sample.group, sample.length, base, judged, valid)

    def _tell(self, answers: dict[int, Answer]) -> None:
        """Why some have no verdict."""
        without: dict[str, list[int]] = {}
        for index, question in self._questions.items():
            answer = answers.get(index)
            if (answer is None and not self._stopped) or (answer is not None and answer.error == LATE):
                log.warning("Timeout waiting for OpenAI API result for request %s", question.request_hash(self._config))
            elif answer is not None and answer.error:
                without.setdefault(answer.error, []).append(index)
        for error, indices in without.items():
            log.warning("No verdict for responses %s: %s", ", ".join(map(str, indices)), error)

    def _print_some(self, extra: dict[str, list[Any]]) -> None:
        printed: dict[Any, int] = {}
        for index, sample in enumerate(self._samples):
            if printed.get(sample.data_source, 0) < self._num_examine:
                printed[sample.data_source] = printed.get(sample.data_source, 0) + 1
                print("[prompt]", sample.prompt)
                print("[response]", sample.response)
                print("[ground_truth]", sample.ground_truth)
                for name, values in extra.items():
                    print(f"[{name}]", values[index])


class Progress:
    """A line at each quarter."""

    def __init__(self, total: int) -> None:
        self._total, self._told = total, 0

    def __call__(self, settled: int) -> None:
        quarter = 4 * settled // self._total
        if self._told < quarter < 4:
            self._told = quarter
            share = 100 * settled / self._total
            log.info("OpenAI quality evaluation progress: %.1f%% (%d/%d)", share, settled, self._total)
