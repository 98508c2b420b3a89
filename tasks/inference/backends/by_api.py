"""Backends `openai`, `togetherai` and `vllm`: API workers call any OpenAI-compatible endpoint through a profile."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.errors import InvalidRequest
from tasks.inference.backends.backend import answerable, prompt_key, whole_spec
from tasks.inference.generation import answered, refusal
from tasks.inference.model import InferenceItem, InferenceSpec
from tasks.inference.prompts import messages_of
from tasks.jobs.model import Result, StageLimits
from tasks.jobs.stage import AskStage, Key, Stage, Work
from tasks.judging.key import Resolve
from tasks.providers.call import ApiCall, ApiReply, Ask

#: Maximum rows of a chunk, and the initial estimate of the seconds that a row takes.
BATCH, COST_S = 64, 2.0


class ByApi:
    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    def check(self, spec: InferenceSpec) -> None:
        self._resolve(profile_of(spec), spec.model)

    def stage(self, spec: InferenceSpec) -> Stage[InferenceItem]:
        return ApiStage(spec, self._resolve)

    def batch_key(self, spec: InferenceSpec) -> str:
        return whole_spec(spec)


class ApiStage(AskStage[InferenceItem]):
    """Answers rows by API calls through a profile; the samples of a row are requested concurrently."""

    def __init__(self, spec: InferenceSpec, resolve: Resolve) -> None:
        timeout_s = 2 * spec.timeout_s * (spec.max_retries + 1)
        super().__init__("generate", "api", StageLimits(batch_items=BATCH, cost_s=COST_S, timeout_s=timeout_s))
        self._spec = spec
        self._resolve = resolve

    def key(self, work: Work[InferenceItem]) -> Key | None:
        return answerable(work.item, lambda: self._key(work.item, profile_of(self._spec), self._spec.model))

    def stored_key(self, work: Work[InferenceItem], result: Result, key: Key) -> Key | None:  # noqa: ARG002
        """Return the key with the endpoint and model that really answered; None if several of them answered."""
        value: Any = result.value
        try:
            answerers = {(each["profile"], each["model"]) for each in value["answered_by"]}
            if len(answerers) > 1:
                return None
            profile, model = answerers.pop()
            asked = self._spec.model if profile == profile_of(self._spec) else model
            return self._key(work.item, profile, asked)
        except InvalidRequest:
            return None

    def _key(self, item: InferenceItem, profile: str, model: str) -> Key | None:
        return prompt_key(self._spec, item, dict(self._resolve(profile, model)))

    async def ask(self, ask: Ask, work: Work[InferenceItem]) -> Result:
        if refused := refusal(work.item):
            return refused
        spec = self._spec
        began = time.monotonic()
        messages = tuple(messages_of(spec, work.item))
        replies = await asyncio.gather(*(ask(_call(spec, messages, at)) for at in range(spec.sampling.n)))
        return answered(_value(spec, replies, time.monotonic() - began))


def profile_of(spec: InferenceSpec) -> str:
    return spec.profile or spec.backend


def _call(spec: InferenceSpec, messages: tuple[Mapping[str, Any], ...], sample: int) -> ApiCall:
    asked = spec.sampling
    sampling: dict[str, Any] = {"temperature": asked.temperature, "max_tokens": asked.max_new_tokens}
    if asked.temperature:
        sampling |= {"top_p": asked.top_p, "seed": asked.seed + sample}
        if asked.top_k:
            sampling["top_k"] = asked.top_k
    if asked.stop:
        sampling["stop"] = list(asked.stop)
    return ApiCall(
        profile=profile_of(spec),
        messages=messages,
        model=spec.model,
        sampling=sampling,
        top_logprobs=1 if spec.logprobs else 0,
        timeout_s=spec.timeout_s,
        max_retries=spec.max_retries,
        may_rest=asked.n == 1,
    )


def _value(spec: InferenceSpec, replies: Sequence[ApiReply], seconds: float) -> dict[str, Any]:
    value: dict[str, Any] = {
        "answers": [reply.text for reply in replies],
        "finish": [reply.finish_reason for reply in replies],
        "tokens": {
            "prompt": replies[0].prompt_tokens,
            "completion": sum(reply.completion_tokens for reply in replies),
        },
        "inference_time": round(seconds, 4),
        "model": replies[0].model,
        "version": "",
        "answered_by": [{"profile": reply.profile, "model": reply.model} for reply in replies],
    }
    if spec.logprobs:
        value["logprobs"] = [[token["logprob"] for token in reply.logprobs] for reply in replies]
    return value
