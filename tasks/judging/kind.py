"""Job kind `judge`: one stage on API workers."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.apis.call import Ask
from tasks.errors import InvalidRequest
from tasks.jobs.kinds import Work
from tasks.jobs.model import ItemError, Result, Stage
from tasks.judging.judge import judge_item
from tasks.judging.key import Resolve, as_named, item_key, stored_key
from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.judging.rubrics import Rubrics

#: Items of a batch, and a first guess of the seconds that a judge takes.
BATCH, COST_S = 64, 2.0


class Judge:
    name = "judge"
    spec_model = JudgeSpec
    item_model = JudgeItem

    def __init__(self, rubrics: Rubrics, resolve: Resolve = as_named) -> None:
        self._rubrics = rubrics
        self._resolve = resolve

    def check(self, spec: JudgeSpec) -> None:
        """Whether this installation has what the job names. Raises InvalidRequest."""
        self._rubrics.find_for(spec.rubric, spec.mode)
        for member in spec.panel:
            self._resolve(member.profile, member.model)

    def stages(self, spec: JudgeSpec) -> Sequence[Stage]:
        return [judge_stage(spec)]

    def key(self, spec: JudgeSpec, stage: str, item: JudgeItem) -> dict[str, Any] | None:  # noqa: ARG002  # one stage
        try:
            rubric = self._rubrics.find_for(spec.rubric, spec.mode)
        except InvalidRequest:  # gone since the job was taken: its items fail one by one, none is stored
            return None
        return item_key(spec, rubric, item, self._resolve)

    def stored_key(self, spec: JudgeSpec, stage: str, item: JudgeItem, result: Result) -> dict[str, Any] | None:  # noqa: ARG002  # one stage
        """What a result may be stored under; None when it may not. See `key.py`."""
        return stored_key(spec, self._rubrics.find_for(spec.rubric, spec.mode), item, result, self._resolve)

    def labels(self, spec: JudgeSpec) -> Mapping[str, str]:
        return {
            "profile": ",".join(dict.fromkeys(member.profile for member in spec.panel)),
            "model": ",".join(dict.fromkeys(member.model for member in spec.panel if member.model)),
            "rubric": spec.rubric.partition("@")[0],
        }

    def batch_key(self, spec: JudgeSpec) -> str:
        return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()

    def advance(self, spec: JudgeSpec, stage: str, work: Work[JudgeItem], result: Result) -> Result:  # noqa: ARG002  # one stage
        return result

    async def run_one(self, ask: Ask, spec: JudgeSpec, work: Work[JudgeItem]) -> Result:
        try:
            rubric = self._rubrics.find_for(spec.rubric, spec.mode)
        except InvalidRequest as error:
            return Result(error=ItemError("rubric_missing", str(error)))
        return await judge_item(ask, spec, rubric, work.item)


def judge_stage(spec: JudgeSpec) -> Stage:
    """Where judging is done, by this kind or as part of another. Its batch may take as long as every try of every
    question; waits between tries and for a turn are bounded elsewhere."""
    timeout_s = 2 * spec.timeout_s * (spec.max_retries + 1) * (spec.re_asks + 1)
    calls = len(spec.panel) * spec.samples * (2 if spec.mode == "pairwise" else 1)
    most_out = max(1, spec.concurrency // calls) if spec.concurrency else 0
    return Stage(
        "judge", "api", asks=True, rekeys=True, batch_items=BATCH, cost_s=COST_S, timeout_s=timeout_s,
        answers=Judge.name, most_out=most_out,
    )  # fmt: skip
