"""Job kind `judge`: one stage on API workers."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from config.queues import Priority
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

    def stages(self, spec: JudgeSpec) -> Sequence[Stage]:  # noqa: ARG002  # the same for all
        return [Stage("judge", "api")]

    def key(self, spec: JudgeSpec, stage: str, item: JudgeItem) -> dict[str, Any] | None:  # noqa: ARG002  # one stage
        try:
            rubric = self._rubrics.find_for(spec.rubric, spec.mode)
        except InvalidRequest:  # gone since the job was taken: its items fail one by one, none is stored
            return None
        return item_key(spec, rubric, item, self._resolve)

    def stored_key(self, spec: JudgeSpec, item: JudgeItem, result: Result) -> dict[str, Any] | None:
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

    def batch_items(self, spec: JudgeSpec) -> int:  # noqa: ARG002  # the same for all
        return BATCH

    def cost_s(self, spec: JudgeSpec) -> float:  # noqa: ARG002  # its calls run side by side
        return COST_S

    def timeout_s(self, spec: JudgeSpec) -> float:
        """Every try of every question; waits between tries and for a turn are bounded elsewhere."""
        return 2 * spec.timeout_s * (spec.max_retries + 1) * (spec.re_asks + 1)

    def onward(self, spec: JudgeSpec, stage: str, result: Result) -> str:  # noqa: ARG002  # one stage
        return ""

    async def run_one(
        self, ask: Ask, spec: JudgeSpec, work: Work[JudgeItem], job: str = "", priority: Priority = "normal"
    ) -> Result:
        try:
            rubric = self._rubrics.find_for(spec.rubric, spec.mode)
        except InvalidRequest as error:
            return Result(error=ItemError("rubric_missing", str(error)))
        return await judge_item(ask, spec, rubric, work.item, job, priority)
