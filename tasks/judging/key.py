"""What determines a judge's answer, for the cache: another model, rubric, scale or wording is another question."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from config.profiles import Profiles, UnknownProfile
from tasks.errors import CannotJudge, InvalidRequest
from tasks.jobs.model import Result
from tasks.judging.model import JudgeItem, JudgeSpec
from tasks.judging.prompts import prompts
from tasks.judging.rubrics import Rubric, RubricError
from tasks.judging.verdict import VERSION

#: From a profile and a model (empty: its first) to what tells this endpoint and model from all others.
Resolve = Callable[[str, str], Mapping[str, str]]


def as_named(profile: str, model: str) -> Mapping[str, str]:
    """Names as they are; enough while no profile changes what it stands for."""
    return {"profile": profile, "model": model}


def resolver(profiles: Profiles) -> Resolve:
    """By what the profiles stand for now: one that is pointed elsewhere must not be answered by its last endpoint."""

    def resolve(profile: str, model: str) -> Mapping[str, str]:
        try:
            known = profiles.get(profile)
        except UnknownProfile as error:
            raise InvalidRequest(str(error), field="spec.profile") from error
        if model and model not in known.models and not known.any_model:
            models = ", ".join(known.models)
            raise InvalidRequest(f"Profile {profile} has no model {model!r}; it has {models}.", field="spec.model")
        return {"endpoint": f"{known.host}{urlsplit(known.base_url).path}", "model": model or known.models[0]}

    return resolve


def item_key(spec: JudgeSpec, rubric: Rubric, item: JudgeItem, resolve: Resolve = as_named) -> dict[str, Any]:
    try:
        asked: list[Any] = [[dict(each) for each in prompt.messages] for prompt in prompts(spec, rubric, item)]
    except (CannotJudge, RubricError) as error:
        asked = [f"cannot be asked: {error}"]  # it will fail, and failures are not stored
    return {
        "judges": [dict(resolve(each.profile, each.model)) | {"weight": each.weight} for each in spec.panel],
        "rubric": {"name": rubric.name, "version": rubric.version, "hash": rubric.hash},
        "mode": spec.mode,
        "scale": list(spec.range),
        "normalize": spec.normalize,
        "messages": asked,
        "sampling": [spec.sampling_of(index) for index in range(spec.samples)],
        "use_schema": spec.use_schema,
        "logprobs": spec.logprobs,
        "reading": VERSION,
    }


def stored_key(
    spec: JudgeSpec, rubric: Rubric, item: JudgeItem, result: Result, resolve: Resolve = as_named
) -> dict[str, Any] | None:
    """The key that the answer may be stored under: the question put to those who really answered it.

    None when it must not be stored: a failure, a mean of fewer samples than were asked for, or one judge's samples
    answered partly by its fallback.
    """
    if result.error or not isinstance(result.value, dict):
        return None
    key = item_key(spec, rubric, item, resolve)
    rows: Any = result.value["verdicts"]
    per_member = len(rows) // len(spec.panel)
    for at, member in enumerate(spec.panel):
        own = rows[at * per_member : (at + 1) * per_member]
        if any(row["verdict"] is None for row in own):
            return None
        answered = {(row["answered_by"], row["model"]) for row in own if row["answered_by"] != member.profile}
        if not answered:
            continue
        if len(answered) > 1 or any(row["answered_by"] == member.profile for row in own):
            return None
        try:
            key["judges"][at] = dict(resolve(*answered.pop())) | {"weight": member.weight}
        except InvalidRequest:  # it calls its model by another name than its profile does
            return None
    return key
