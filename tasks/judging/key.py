"""Cache keys of judge answers: two questions share a key only if model, rubric, scale and wording are equal."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from config.profiles import Profiles, UnknownProfile
from tasks.errors import InvalidRequest
from tasks.jobs.model import Result
from tasks.jobs.stage import Key
from tasks.judging.model import JudgeSpec
from tasks.judging.prompts import Question
from tasks.judging.verdict import VERSION

#: Maps a profile and a model (empty: the profile's first model) to a unique identification of endpoint and model.
Resolve = Callable[[str, str], Mapping[str, str]]


def as_named(profile: str, model: str) -> Mapping[str, str]:
    """Identify endpoint and model by their names; correct only while no profile changes its endpoint."""
    return {"profile": profile, "model": model}


def resolver(profiles: Profiles) -> Resolve:
    """Identify endpoint and model by the current URL of the profile: after a change of the URL, answers of the previous
    endpoint must not be served from the cache."""

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


class JudgeKeys:
    """Cache keys of the items of a job. Everything except the messages is computed once per job."""

    def __init__(self, spec: JudgeSpec, resolve: Resolve = as_named) -> None:
        self._spec = spec
        self._resolve = resolve

    def key(self, question: Question) -> Key:
        rubric = question.rubric
        messages: list[Any] = [list(prompt.messages) for prompt in question.prompts]
        if question.error:  # the item will fail, and failures are not cached
            messages = [f"cannot be asked: {question.error}"]
        return {
            **self._of_job,
            "rubric": {"name": rubric.name, "version": rubric.version, "hash": rubric.hash},
            "messages": messages,
        }

    @cached_property
    def _of_job(self) -> dict[str, Any]:
        spec = self._spec
        return {
            "judges": [dict(self._resolve(each.profile, each.model)) | {"weight": each.weight} for each in spec.panel],
            "mode": spec.mode,
            "scale": list(spec.range),
            "normalize": spec.normalize,
            "sampling": [spec.sampling_for(index) for index in range(spec.samples)],
            "use_schema": spec.use_schema,
            "logprobs": spec.logprobs,
            "reading": VERSION,
        }

    def stored(self, result: Result, key: Key) -> Key | None:
        """Return the key under which an answer is stored, with the endpoints that really answered.

        None when the answer must not be stored: a failure, a mean over fewer samples than requested, or samples of the
        same judge that were answered partly by its fallback.
        """
        if result.error or not isinstance(result.value, dict):
            return None
        judges = list(key["judges"])
        rows: Any = result.value["verdicts"]
        per_member = len(rows) // len(self._spec.panel)
        for at, member in enumerate(self._spec.panel):
            own = rows[at * per_member : (at + 1) * per_member]
            if any(row["verdict"] is None for row in own):
                return None
            answered = {(row["answered_by"], row["model"]) for row in own if row["answered_by"] != member.profile}
            if not answered:
                continue
            if len(answered) > 1 or any(row["answered_by"] == member.profile for row in own):
                return None
            try:
                judges[at] = dict(self._resolve(*answered.pop())) | {"weight": member.weight}
            except InvalidRequest:  # the API reports a model name that is not in its profile
                return None
        return key if judges == key["judges"] else {**key, "judges": judges}
