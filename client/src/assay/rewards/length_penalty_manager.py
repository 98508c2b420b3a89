"""A reward manager for verl: base score, plus a judge's score, minus a penalty for lengths far from the group's median.

    reward = base + judge_score * reward_coefficient - penalty_scale * penalty

`submit` returns at once: judging goes on in the server's workers while the trainer computes, and `collect` brings it
in. What the server cannot have judged is asked of the chat API from here. What has no verdict in time keeps its base
score and penalty and is not `valid`.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError
from assay.rewards.base_scores import ComputeScore, compute_base_scores
from assay.rewards.dataproto import read_samples, scores_of_a_model
from assay.rewards.judge_profile import ProfileMissing
from assay.rewards.judge_workers import JudgeWorkers
from assay.rewards.judged_batch import JudgedBatch
from assay.rewards.length_penalty_config import ConfigLike, LengthPenaltyConfig
from assay.rewards.reward_handle import Ready, RewardHandle

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)


class LengthPenaltyRewardManager:
    """`manager(data)` is a reward tensor; `manager.submit(data).collect()` is the same one, later."""

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: ComputeScore | None = None,
        reward_fn_key: str = "data_source",
        length_penalty_config: ConfigLike = None,
    ) -> None:
        """`compute_score` gives base scores as in verl; without it the config names `scorers` of the server.

        `num_examine` samples of each data source are printed per batch.
        """
        self.tokenizer, self.num_examine = tokenizer, num_examine
        self.compute_score, self.reward_fn_key = compute_score, reward_fn_key
        self.config = LengthPenaltyConfig.of(length_penalty_config)
        if compute_score is None and not self.config.scorers:
            raise ValueError("Give compute_score, or name scorers of the server in the config: scorers=['math_equal']")
        self._workers = JudgeWorkers(self.config)

    def __reduce__(self) -> tuple[Any, ...]:
        """Goes to another process without threads and connections: they are made there anew."""
        given = (self.tokenizer, self.num_examine, self.compute_score, self.reward_fn_key, self.config)
        return type(self), given

    def __enter__(self) -> Self:
        self.start_workers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown_workers()

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        return self.submit(data).collect(return_dict)

    def submit(self, data: Any) -> RewardHandle:
        """Base scores of `compute_score` are computed here and now; all else goes on behind the handle."""
        if (scores := scores_of_a_model(data, return_dict=True)) is not None:
            return Ready(scores)
        samples = read_samples(data, self.tokenizer, self.reward_fn_key)
        base = compute_base_scores(self.compute_score, samples) if self.compute_score else None
        batch = JudgedBatch(self.config, samples, base, data.batch["responses"], self.num_examine)
        batch.start(self._workers)
        return batch

    def start_workers(self) -> None:
        """Reach the server and find its API profile once for many batches; done by the first batch if not called.

        Raises ProfileMissing when the server has none that fits. A server that does not answer is only warned of:
        every batch looks for it again.
        """
        self._workers.keep()
        if self.config.enable_openai_reward:
            try:
                self._workers.profile()
            except ProfileMissing:
                raise
            except AssayError as error:
                log.warning("The Assay server cannot be used: %s", error)

    def shutdown_workers(self) -> None:
        """Stop judging; the last batch does if `start_workers` was not called. What is under way keeps the verdicts it
        has, and the rest of it is not valid."""
        self._workers.shut_down()
