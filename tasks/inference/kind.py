"""Job kind `inference`: one stage, on devices, on API workers, or where a backend of an installed package says."""

import asyncio
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tasks.apis.call import ApiCall, ApiReply, Ask
from tasks.errors import AssayError, CannotAnswer, InvalidRequest
from tasks.inference import backends
from tasks.inference.duplicates import settled
from tasks.inference.engine import Engine, ModelRef
from tasks.inference.generation import answered, generate, refusal
from tasks.inference.model import DEVICE_BACKENDS, InferenceItem, InferenceSpec
from tasks.inference.models import Models, identity
from tasks.inference.prompts import check_template, messages_of
from tasks.jobs.kinds import Context, Feed, Work
from tasks.jobs.model import STOPPED, ItemError, Result, Stage
from tasks.judging.key import Resolve

#: Rows of a chunk at least, so that an engine is full; and a first guess of the seconds one takes.
LEAST, COST_S = 16, 0.5
#: Texts of a batch that are embedded, of a chunk at least, and a first guess of the seconds one takes.
EMBED_BATCH, EMBED_LEAST, EMBED_S = 256, 32, 0.02
#: Calls of an API that a chunk holds.
API_BATCH, API_COST_S = 64, 2.0


class Inference:
    name = "inference"
    spec_model = InferenceSpec
    item_model = InferenceItem

    def __init__(self, models: Models, resolve: Resolve) -> None:
        self._models = models
        self._resolve = resolve

    def check(self, spec: InferenceSpec) -> None:
        check_template(spec)
        if spec.backend in DEVICE_BACKENDS:
            self._models.find(spec)
        elif spec.asks_an_api:
            self._resolve(_profile(spec), spec.model)
        else:
            backends.pool_of(spec.backend)

    def choose(self, spec: InferenceSpec, items: Iterator[dict[str, Any]], slots: int) -> Iterator[dict[str, Any]]:
        """The first rows, as many as the job may have; those that ask alike by their `dedup_key` made alike."""
        limits = [spec.limit, spec.max_samples_per_worker and spec.max_samples_per_worker * max(1, slots)]
        most = min((limit for limit in limits if limit), default=None)
        return settled(islice(items, most))

    def stages(self, spec: InferenceSpec) -> Sequence[Stage]:
        if spec.task == "embed":
            stage = Stage(
                "embed", "device", batch_items=EMBED_BATCH, least_items=EMBED_LEAST, cost_s=EMBED_S,
                timeout_s=spec.timeout_s,
            )  # fmt: skip
        elif spec.backend in DEVICE_BACKENDS:
            stage = Stage(
                "generate", "device", streams=True, batch_items=500, least_items=LEAST, cost_s=COST_S,
                timeout_s=spec.timeout_s,
            )  # fmt: skip
        elif spec.asks_an_api:
            timeout_s = 2 * spec.timeout_s * (spec.max_retries + 1)
            stage = Stage(
                "generate", "api", asks=True, rekeys=True, batch_items=API_BATCH, cost_s=API_COST_S, timeout_s=timeout_s
            )
        else:
            pool = backends.pool_of(spec.backend)
            stage = Stage("generate", pool, batch_items=1, cost_s=COST_S, timeout_s=spec.timeout_s)
        return [stage]

    def key(self, spec: InferenceSpec, stage: str, item: InferenceItem) -> dict[str, Any] | None:  # noqa: ARG002  # one stage
        if refusal(item):
            return None
        try:
            return self._key(spec, item, self._answerer(spec))
        except (CannotAnswer, InvalidRequest):  # it will fail, and failures are not stored
            return None

    def stored_key(self, spec: InferenceSpec, stage: str, item: InferenceItem, result: Result) -> dict[str, Any] | None:  # noqa: ARG002  # one stage
        """Under the endpoint and model that really answered; None when there were several."""
        value: Any = result.value
        try:
            answerers = {(each["profile"], each["model"]) for each in value["answered_by"]}
            if len(answerers) > 1:
                return None
            profile, model = answerers.pop()
            asked = spec.model if profile == _profile(spec) else model
            return self._key(spec, item, dict(self._resolve(profile, asked)))
        except InvalidRequest:
            return None

    def labels(self, spec: InferenceSpec) -> Mapping[str, str]:
        return {"model": spec.model, "profile": _profile(spec) if spec.asks_an_api else ""}

    def batch_key(self, spec: InferenceSpec) -> str:
        """Rows for one model share its running batch, however they are asked; calls of an API run by the whole spec."""
        if spec.backend in DEVICE_BACKENDS:
            return str(self._models.find(spec))
        return hashlib.sha256(spec.model_dump_json().encode()).hexdigest()

    def advance(self, spec: InferenceSpec, stage: str, work: Work[InferenceItem], result: Result) -> Result:  # noqa: ARG002  # one stage
        return result

    def stream(self, context: Context, feed: Feed[InferenceItem]) -> None:
        first = feed.more(1)
        if not first:
            return
        generate(context, _Rest(feed, first), context.engine(), self._models.find(first[0].spec))

    async def run_one(self, ask: Ask, spec: InferenceSpec, work: Work[InferenceItem]) -> Result:
        if refused := refusal(work.item):
            return refused
        began = time.monotonic()
        messages = tuple(messages_of(spec, work.item))
        replies = await asyncio.gather(*(ask(_call(spec, messages, at)) for at in range(spec.sampling.n)))
        return answered(_value(spec, replies, time.monotonic() - began))

    def run(self, context: Context, spec: InferenceSpec, batch: Sequence[Work[InferenceItem]]) -> Sequence[Result]:
        items = [work.item for work in batch]
        if spec.task == "embed":
            return _embed(context.engine(), self._models.find(spec), items)
        return [STOPPED if context.is_cancelled() else _run_custom(spec, item) for item in items]

    def _answerer(self, spec: InferenceSpec) -> Any:
        """What tells who answers from all others; None where that cannot be told."""
        if spec.backend in DEVICE_BACKENDS:
            return identity(self._models.find(spec))
        return dict(self._resolve(_profile(spec), spec.model)) if spec.asks_an_api else None

    def _key(self, spec: InferenceSpec, item: InferenceItem, answerer: Any) -> dict[str, Any] | None:
        if answerer is None:
            return None
        sampling = spec.sampling.model_dump(mode="json")
        if not spec.sampling.temperature:  # nothing is drawn
            sampling = {name: sampling[name] for name in ("temperature", "max_new_tokens", "stop")}
        if spec.task == "embed":
            return {"answerer": answerer, "text": item.query}
        return {
            "answerer": answerer,
            "messages": messages_of(spec, item),
            "chat": spec.chat,
            "sampling": sampling,
            "logprobs": spec.logprobs,
        }


class _Rest:
    """A feed of which one item was taken already."""

    def __init__(self, feed: Feed[InferenceItem], first: Sequence[Work[InferenceItem]]) -> None:
        self._feed, self._first = feed, list(first)
        self.done, self.keep_file, self.is_cancelled = feed.done, feed.keep_file, feed.is_cancelled

    def more(self, room: int) -> Sequence[Work[InferenceItem]]:
        first, self._first = self._first, []
        return first or self._feed.more(room)


def _profile(spec: InferenceSpec) -> str:
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
        profile=_profile(spec), messages=messages, model=spec.model, sampling=sampling,
        top_logprobs=1 if spec.logprobs else 0, timeout_s=spec.timeout_s, max_retries=spec.max_retries,
        may_rest=asked.n == 1,
    )  # fmt: skip


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


def _embed(engine: Engine, model: ModelRef, items: Sequence[InferenceItem]) -> list[Result]:
    results = []
    for each in engine.embed(model, [item.query or "" for item in items]):
        if isinstance(each, AssayError):
            results.append(Result(error=ItemError(each.name, str(each))))
        else:
            value: dict[str, Any] = {"embedding": list(each.vector), "tokens": {"prompt": each.tokens, "completion": 0}}
            results.append(Result(value=value | {"version": each.version}))
    return results


def _run_custom(spec: InferenceSpec, item: InferenceItem) -> Result:
    if refused := refusal(item):
        return refused
    began = time.monotonic()
    row = item.model_dump(mode="json") | (item.answered_as or {})
    made = backends.backend(spec.backend)
    try:
        text = made.generate_answer(row["query"] or "", row["context"] or "", row["retrieval_method"] or "")
    except Exception as error:  # noqa: BLE001  # whatever goes wrong in a backend is this row's outcome
        failure = ItemError("backend_failed", f"{type(error).__name__}: {error}"[:1000])
        return Result(error=failure, value={"exception_type": type(error).__name__})
    tokens = {"prompt": 0, "completion": 0}  # it counts none
    seconds = round(time.monotonic() - began, 4)
    return answered(
        {"answers": [str(text)], "finish": ["stop"], "tokens": tokens, "inference_time": seconds, "model": spec.model,
         "version": ""}
    )  # fmt: skip
