"""Generation loop of inference rows: feeds an engine with requests, gathers the samples of a row, builds its result."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tasks.errors import AssayError, CannotAnswer
from tasks.inference import engine
from tasks.inference.engine import Engine, Generated, GenerateRequest, ModelRef, Renewal
from tasks.inference.model import InferenceItem, InferenceSpec
from tasks.inference.prompts import messages_of
from tasks.jobs.model import ItemError, Result
from tasks.jobs.stage import Context, Feed, Work

#: Maximum requests of an engine's first call: with many prompts, it can batch prompts of equal length.
FIRST = 64


@dataclass(slots=True)
class _Row:
    work: Work[InferenceItem]
    requests: list[GenerateRequest]
    began: float = field(default_factory=time.monotonic)
    answers: dict[int, Generated | AssayError] = field(default_factory=dict)


def generate(
    context: Context,
    feed: Feed[InferenceItem],
    held: Engine,
    model: ModelRef,
    renewal: Renewal | None = None,
    made: "Make | None" = None,
) -> None:
    """Answer the rows of the feed until it is empty. Requests are numbered in the order in which the engine takes them;
    finished rows are dropped from memory, because the feed may be endless. With a `renewal`, the weights may change
    during an answer, and each answer has its own timeout; `made` builds the result of a row."""
    places: dict[int, tuple[_Row, int]] = {}
    numbers = count()
    over: list[tuple[_Row, int]] = []

    def more(room: int) -> list[GenerateRequest]:
        while True:
            works = feed.more(max(0, room - len(over)))
            for work in works:
                refused = refusal(work.item)
                try:
                    requests = [] if refused else requests_of(work.spec, work.item, is_timed=renewal is not None)
                except CannotAnswer as error:
                    refused = Result(error=ItemError(error.name, str(error)))
                if refused:
                    feed.done(work, refused)
                else:
                    row = _Row(work, requests)
                    over.extend((row, sample) for sample in range(len(requests)))
            if not works or len(over) >= room:
                break
        given = [over.pop(0) for _ in range(min(room, len(over)))]
        places.update((next(numbers), each) for each in given)
        return [row.requests[sample] for row, sample in given]

    def done(place: int, answer: Generated | AssayError) -> None:
        row, sample = places.pop(place)
        row.answers[sample] = answer
        if len(row.answers) == len(row.requests):
            answers = [row.answers[at] for at in range(len(row.requests))]
            seconds = time.monotonic() - row.began
            feed.done(row.work, (made or result_of)(row.work.spec, model, answers, seconds))

    if first := more(FIRST):
        held.generate(model, first, on_done=done, more=more, is_cancelled=context.is_cancelled, renewal=renewal)


def requests_of(spec: InferenceSpec, item: InferenceItem, is_timed: bool = False) -> list[GenerateRequest]:
    messages = messages_of(spec, item)
    asked = spec.sampling
    sampling = engine.Sampling(
        asked.max_new_tokens, asked.temperature, asked.top_p, asked.top_k, asked.stop, asked.seed
    )
    prompt: Any = messages if spec.chat == "auto" else "\n\n".join(str(each["content"]) for each in messages)
    timeout_s = spec.timeout_s if is_timed else None
    return [GenerateRequest(prompt, sampling, sample, spec.logprobs, timeout_s) for sample in range(asked.n)]


def result_of(
    spec: InferenceSpec, model: ModelRef, answers: Sequence[Generated | AssayError], seconds: float
) -> Result:
    """Build the result of a row. If any answer failed, the row fails: it has fewer answers than requested."""
    good = [each for each in answers if isinstance(each, Generated)]
    for each in answers:
        if not isinstance(each, Generated):
            said: Any = {"exception_type": type(each).__name__, "inference_time": round(seconds, 4)}
            return Result(error=ItemError(each.name, str(each)), value=said)
    value: dict[str, Any] = {
        "answers": [each.text for each in good],
        "finish": [each.finish for each in good],
        "tokens": {"prompt": good[0].tokens_in, "completion": sum(each.tokens_out for each in good)},
        "inference_time": round(seconds, 4),
        "model": str(model).rpartition("/")[2] if model.name.startswith("/") else str(model),
        "version": good[0].version,
    }
    if close_calls := sum(each.close_calls for each in good):
        value["close_calls"] = close_calls
    if spec.logprobs:
        value["logprobs"] = [list(each.logprobs or ()) for each in good]
    return answered(value)


#: Builds the result of a row from its answers, which may include errors.
Make = Callable[[InferenceSpec, ModelRef, Sequence[Generated | AssayError], float], Result]


def answered(value: dict[str, Any]) -> Result:
    """Build the result of an answered row. An empty answer is a failure of its own type, not a success."""
    if all(not text.strip() for text in value["answers"]):
        failure = ItemError("empty_answer", "The model returned an empty answer.")
        return Result(error=failure, value=value | {"exception_type": "EmptyAnswer"})
    return Result(value=value)


def refusal(item: InferenceItem) -> Result | None:
    """Return the failed result of a row without a context (`success: false`), which is not run; else None."""
    if item.success is not False:
        return None
    reason = item.error if isinstance(item.error, str) and item.error else "The row has `success: false`."
    return Result(error=ItemError("context_failed", reason.removeprefix("Context generation failed:").strip()))
