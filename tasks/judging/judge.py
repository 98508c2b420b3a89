"""Judging of an item: sends every question concurrently, asks again after a reply without a verdict, joins the result.

A judge without a verdict never becomes a number. Not covered: making, retrying and paying for a call, which `ask` does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.errors import ApiTimeout, AssayError, CannotJudge, NoVerdict, Retryable
from tasks.jobs.model import ItemError, Result
from tasks.judging import aggregation
from tasks.judging.model import JudgeSpec, Member
from tasks.judging.prompts import Prompt, Question, nudged
from tasks.judging.rubrics import Rubric
from tasks.judging.verdict import Verdict, read_reply, reply_schema, verdict_reader
from tasks.providers.call import ApiCall, ApiReply, Ask


@dataclass(frozen=True, slots=True)
class Sample:
    """A question to a judge, with its replies and its verdict or error."""

    member: Member
    prompt: Prompt
    index: int
    replies: tuple[ApiReply, ...]
    missed: tuple[NoVerdict, ...]
    """Errors of the replies before the last reply."""
    verdict: Verdict | None = None
    score: float | None = None
    """Score of the response on the scale: for a pair in reversed order, the complement of the verdict."""
    weighted: bool = False
    error: AssayError | None = None


async def judge_item(ask: Ask, spec: JudgeSpec, question: Question) -> Result:
    """Judge an item. The result is ok if every judge gave at least one verdict, for a pair in each order."""
    if isinstance(question.error, CannotJudge):
        return Result(error=ItemError(question.error.reason, str(question.error)))
    if question.error:
        return Result(error=ItemError("rubric_unusable", str(question.error)))
    asked = question.prompts
    alone = len(spec.panel) * len(asked) * spec.samples == 1
    async with asyncio.TaskGroup() as group:  # an unexpected exception cancels the other calls
        tasks = [
            group.create_task(_sample(ask, spec, member, prompt, index, alone))
            for member in spec.panel
            for prompt in asked
            for index in range(spec.samples)
        ]
    return _result(spec, question.rubric, asked, [task.result() for task in tasks])


async def _sample(ask: Ask, spec: JudgeSpec, member: Member, prompt: Prompt, index: int, alone: bool) -> Sample:
    """Ask a judge until its reply has a verdict. `alone`: whether this is the item's only question, so that no other
    answer is lost when the call fails with CircuitOpen and the item is retried later."""
    replies: list[ApiReply] = []
    missed: list[NoVerdict] = []
    messages = prompt.messages
    while True:
        call = ApiCall(
            profile=member.profile,
            messages=messages,
            model=member.model,
            sampling=spec.sampling_for(index),
            schema=reply_schema(spec.mode, spec.scale) if spec.use_schema == "auto" else None,
            top_logprobs=aggregation.TOP_LOGPROBS if spec.logprobs else 0,
            timeout_s=spec.timeout_s,
            max_retries=spec.max_retries,
            budget=spec.budget,
            may_rest=alone and not missed,
        )
        try:
            replies.append(await ask(call))
            verdict = read_reply(spec, replies[-1])
        except NoVerdict as error:
            if len(missed) >= spec.re_asks:
                return Sample(member, prompt, index, tuple(replies), tuple(missed), error=error)
            missed.append(error)
            messages = nudged(prompt.messages, error)
            continue
        except AssayError as error:
            return Sample(member, prompt, index, tuple(replies), tuple(missed), error=error)
        reader = verdict_reader(spec.mode, spec.scale)
        weight = aggregation.probability_weighted(reader, replies[-1], verdict) if spec.logprobs else None
        score = verdict.value if weight is None else weight
        if prompt.order == "rival_first":
            score = 1 - score
        return Sample(member, prompt, index, tuple(replies), tuple(missed), verdict, score, weighted=weight is not None)


def _result(spec: JudgeSpec, rubric: Rubric, asked: Sequence[Prompt], samples: Sequence[Sample]) -> Result:
    value = _record(rubric, asked, samples)
    cells: dict[tuple[str, str], list[float]] = {
        (member.name, prompt.order): [] for member in spec.panel for prompt in asked
    }
    for sample in samples:
        if sample.score is not None:
            cells[sample.member.name, sample.prompt.order].append(sample.score)
    empty = next((cell for cell, scores in cells.items() if not scores), None)
    if empty:
        return _failure([s for s in samples if (s.member.name, s.prompt.order) == empty], value)
    means = {cell: aggregation.mean(scores) for cell, scores in cells.items()}
    low, high = spec.range if spec.normalize else (0, 1)
    by_member = {
        member.name: aggregation.normalized(aggregation.mean([means[member.name, p.order] for p in asked]), low, high)
        for member in spec.panel
    }
    scores = [score for scores in cells.values() for score in scores]
    parts = {f"profile.{name}": score for name, score in by_member.items()}
    parts["spread"] = aggregation.spread(scores) / (high - low)
    parts["samples_valid"] = float(len(scores))
    if spec.mode == "pairwise":
        agreed = [aggregation.agree(*(means[member.name, p.order] for p in asked)) for member in spec.panel]
        parts["order_agreement"] = aggregation.mean([float(each) for each in agreed])
    score = aggregation.panel_mean([(member.weight, by_member[member.name]) for member in spec.panel])
    return Result(score=score, parts=parts, value=value)


def _failure(samples: Sequence[Sample], value: Any) -> Result:
    """Build the failed result of a judge without a verdict. A retryable error takes precedence: the item is retried."""
    errors = [sample.error for sample in samples if sample.error]
    error = next((each for each in errors if isinstance(each, Retryable)), errors[0])
    named = str(error).startswith(f"{samples[0].member.profile}: ")  # errors of failed calls already name the profile
    message = str(error) if named else f"{samples[0].member.name}: {error}"
    failure = ItemError(error.name, message, isinstance(error, Retryable), getattr(error, "wait_s", 0.0))
    return Result(value=value, error=failure, timed_out=isinstance(error, ApiTimeout))


def _record(rubric: Rubric, asked: Sequence[Prompt], samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the record of questions and replies, which is stored with the item's result."""
    replies = [reply for sample in samples for reply in sample.replies]
    costs = [reply.cost for reply in replies if reply.cost is not None]
    return {
        "rubric": rubric.label,
        "prompt": [{"order": prompt.order, "messages": [dict(each) for each in prompt.messages]} for prompt in asked],
        "verdicts": [_row(sample) for sample in samples],
        "models": sorted({reply.model for reply in replies if reply.model}),
        "tokens": {
            "prompt": sum(reply.prompt_tokens for reply in replies),
            "completion": sum(reply.completion_tokens for reply in replies),
        },
        "cost": sum(costs) if costs else None,
    }


def _row(sample: Sample) -> Mapping[str, Any]:
    reply = sample.replies[-1] if sample.replies else None
    error = sample.error
    return {
        "profile": sample.member.profile,
        "order": sample.prompt.order,
        "sample": sample.index,
        "verdict": sample.verdict.value if sample.verdict else None,
        "score": sample.score,
        "weighted": sample.weighted,
        "rationale": sample.verdict.rationale if sample.verdict else None,
        "reply": reply.text if reply else None,
        "model": reply.model if reply else None,
        "answered_by": reply.profile or sample.member.profile if reply else None,
        "used_schema": reply.used_schema if reply else False,
        "left_out": list(reply.left_out) if reply else [],
        "asks": len(sample.replies),
        "missed": [each.reason for each in sample.missed],
        "error": {"type": error.name, "message": str(error)} if error else None,
        "tokens": sum(each.prompt_tokens + each.completion_tokens for each in sample.replies),
        "cost": sum(each.cost or 0.0 for each in sample.replies) if reply and reply.cost is not None else None,
        "latency_s": round(sum(each.latency_s for each in sample.replies), 3),
    }
