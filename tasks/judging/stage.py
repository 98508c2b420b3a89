"""Judge stage, on API workers: the only stage of the kind `judge`, and an optional stage of the kind `score`.

Each item's prompts are rendered once per worker, and shared by the cache key and the calls.
"""

from collections.abc import Callable
from typing import TypeVar

from tasks.errors import InvalidRequest
from tasks.jobs.model import ItemError, Result, StageLimits
from tasks.jobs.stage import AskStage, Key, Work
from tasks.judging.judge import judge_item
from tasks.judging.key import JudgeKeys, Resolve
from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.judging.prompts import Question
from tasks.judging.rubrics import Rubrics
from tasks.providers.call import Ask

ItemT = TypeVar("ItemT")

JUDGE = "judge"
#: Maximum items of a batch, and the initial estimate of the seconds that a judge takes.
BATCH, COST_S = 64, 2.0


class JudgeStage(AskStage[ItemT]):
    """Judges items of any job kind. Answers are cached under the kind `judge`, which makes the cache common to them."""

    def __init__(
        self,
        spec: JudgeSpec,
        rubrics: Rubrics,
        resolve: Resolve,
        as_judge_item: Callable[[ItemT], JudgeItem],
        join: Callable[[Work[ItemT], Result], Result] | None = None,
    ) -> None:
        """`join`: joins the judge's result with the outcome of the previous stage, as `Stage.advance` does."""
        super().__init__(JUDGE, "api", _limits(spec), answers=JUDGE)
        self._spec = spec
        self._rubrics = rubrics
        self._as_judge_item = as_judge_item
        self._join = join
        self._keys = JudgeKeys(spec, resolve)

    def key(self, work: Work[ItemT]) -> Key | None:
        question = work.prepared(self._question)
        return None if isinstance(question, InvalidRequest) else self._keys.key(question)

    def stored_key(self, work: Work[ItemT], result: Result, key: Key) -> Key | None:  # noqa: ARG002
        return self._keys.stored(result, key)

    def advance(self, work: Work[ItemT], result: Result) -> Result:
        return self._join(work, result) if self._join else result

    async def ask(self, ask: Ask, work: Work[ItemT]) -> Result:
        question = work.prepared(self._question)
        if isinstance(question, InvalidRequest):
            return Result(error=ItemError("rubric_missing", str(question)))
        return await judge_item(ask, self._spec, question)

    def _question(self, item: ItemT) -> Question | InvalidRequest:
        """Render the prompts. If the rubric was removed since the submission, each item fails with that error."""
        try:
            rubric = self._rubrics.find_for(self._spec.rubric, self._spec.mode)
        except InvalidRequest as error:
            return error
        return Question.of(self._spec, rubric, self._as_judge_item(item))


def _limits(spec: JudgeSpec) -> StageLimits:
    """Return the stage's limits. A batch may take as long as every try of every question; waits between tries, and for
    a permit, do not count."""
    calls = len(spec.panel) * spec.samples * (2 if spec.mode == "pairwise" else 1)
    return StageLimits(
        batch_items=BATCH,
        cost_s=COST_S,
        timeout_s=2 * spec.timeout_s * (spec.max_retries + 1) * (spec.re_asks + 1),
        most_out=max(1, spec.concurrency // calls) if spec.concurrency else 0,
    )
