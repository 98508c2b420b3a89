"""Reward manager for verl: base score, plus a judge's score, minus a penalty for lengths far from the group's median.

    reward = base + judge_score * reward_coefficient - penalty_scale * penalty

`submit` returns immediately: the server's workers judge while the trainer computes, and `collect` waits for the result.
If the server cannot judge a response, the manager calls the chat API directly. A response without a verdict at the
timeout keeps its base score and penalty, and is not `valid`.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Any

from assay.errors import AssayError
from assay.rewards.length_penalty.base_scores import ComputeScore, compute_base_scores
from assay.rewards.length_penalty.config import ConfigLike, LengthPenaltyConfig
from assay.rewards.length_penalty.dataproto import read_samples, reward_model_scores
from assay.rewards.length_penalty.judge_profile import ProfileMissing
from assay.rewards.length_penalty.judge_workers import JudgeWorkers
from assay.rewards.length_penalty.judged_batch import JudgedBatch
from assay.rewards.length_penalty.reward_handle import CompletedRewards, RewardHandle

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)


class LengthPenaltyRewardManager:
    """Reward manager of verl. `manager(data)` returns the reward tensor; `manager.submit(data)` returns a handle whose
    `collect()` returns the same tensor later."""

    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: ComputeScore | None = None,
        reward_fn_key: str = "data_source",
        length_penalty_config: ConfigLike = None,
    ) -> None:
        """`compute_score` computes base scores as in verl; without it, the server's `scorers` in the config do.

        `num_examine` samples of each data source are printed per batch.
        """
        self.tokenizer, self.num_examine = tokenizer, num_examine
        self.compute_score, self.reward_fn_key = compute_score, reward_fn_key
        self.config = LengthPenaltyConfig.of(length_penalty_config)
        if compute_score is None and not self.config.scorers:
            raise ValueError("Give compute_score, or set scorers of the server in the config: scorers=['math_equal']")
        self._workers = JudgeWorkers(self.config)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the arguments: the other process starts its own threads and connections."""
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
        """Compute the base scores with `compute_score` before returning; judging continues in the background."""
        if (scores := reward_model_scores(data, return_dict=True)) is not None:
            return CompletedRewards(scores)
        samples = read_samples(data, self.tokenizer, self.reward_fn_key)
        base = compute_base_scores(self.compute_score, samples) if self.compute_score else None
        batch = JudgedBatch(self.config, samples, base, data.batch["responses"], self.num_examine)
        batch.start(self._workers)
        return batch

    def start_workers(self) -> None:
        """Connect to the server and look up its API profile once for many batches; otherwise the first batch does it.

        Raise ProfileMissing if the server has no matching profile. If the server does not respond, only log a warning:
        each batch tries again.
        """
        self._workers.keep_until_shutdown()
        if self.config.enable_openai_reward:
            try:
                self._workers.profile()
            except ProfileMissing:
                raise
            except AssayError as error:
                log.warning("The Assay server is unavailable, each batch tries again: %s", error)

    def shutdown_workers(self) -> None:
        """Stop judging; without `start_workers`, the last batch does this itself. Batches in flight keep the verdicts
        they have, and their other responses are not valid."""
        self._workers.shut_down()
