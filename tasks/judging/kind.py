"""Job kind `judge`: a single stage, on API workers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

from tasks.jobs.kind import Installation, Kind
from tasks.jobs.model import Result
from tasks.jobs.stage import Stage, Work
from tasks.judging.key import Resolve, as_named, resolver
from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.judging.rubrics import Rubrics
from tasks.judging.stage import JUDGE, JudgeStage

ItemT = TypeVar("ItemT")


class Judge(Kind[JudgeSpec, JudgeItem]):
    name = JUDGE
    spec_model = JudgeSpec
    item_model = JudgeItem

    def __init__(self, rubrics: Rubrics, resolve: Resolve = as_named) -> None:
        self._rubrics = rubrics
        self._resolve = resolve

    @classmethod
    def create(cls, installation: Installation) -> Self:
        return cls(Rubrics(installation.settings.rubrics_dir), resolver(installation.profiles))

    def check(self, spec: JudgeSpec) -> None:
        """Raise InvalidRequest if this installation lacks the rubric or a profile."""
        self._rubrics.find_for(spec.rubric, spec.mode)
        for member in spec.panel:
            self._resolve(member.profile, member.model)

    def stages(self, spec: JudgeSpec) -> Sequence[Stage[JudgeItem]]:
        return [self.stage(spec, lambda item: item)]

    def stage(
        self,
        spec: JudgeSpec,
        as_judge_item: Callable[[ItemT], JudgeItem],
        join: Callable[[Work[ItemT], Result], Result] | None = None,
    ) -> JudgeStage[ItemT]:
        """Return the judge stage for items of any kind; see `JudgeStage`."""
        return JudgeStage(spec, self._rubrics, self._resolve, as_judge_item, join)

    def labels(self, spec: JudgeSpec) -> Mapping[str, str]:
        return {
            "profile": ",".join(dict.fromkeys(member.profile for member in spec.panel)),
            "model": ",".join(dict.fromkeys(member.model for member in spec.panel if member.model)),
            "rubric": spec.rubric.partition("@")[0],
        }
