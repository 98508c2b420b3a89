"""Conversion of a prompt's generated samples into the group that a trainer receives, each sample with its reward.

A group is carried from stage to stage as plain JSON: `samples`, and a `rows` entry per sample with the results of the
score stages so far. Not covered: the computation of rewards, which is in `tasks/scoring`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.errors import AssayError
from tasks.inference.engine import Generated, ModelRef
from tasks.inference.model import InferenceSpec
from tasks.jobs.model import Bundle, ItemError, Result
from tasks.jobs.stage import Work
from tasks.rollouts.model import RolloutItem
from tasks.rollouts.weight_versions import number_of
from tasks.scoring.model import ScoreItem, ScoreSpec

Group = Mapping[str, Any]


def generated(
    spec: InferenceSpec,  # noqa: ARG001  # part of the signature `Make`
    model: ModelRef,  # noqa: ARG001
    answers: Sequence[Generated | AssayError],
    seconds: float,
) -> Result:
    """Build the result of a generated group. If any sample failed, the whole group fails: it would be incomplete."""
    for each in answers:
        if isinstance(each, AssayError):
            return Result(error=ItemError(each.name, str(each)), value={"exception_type": type(each).__name__})
    good = [each for each in answers if isinstance(each, Generated)]
    samples: Any = [
        {
            "text": each.text,
            "finish": each.finish,
            "token_ids": list(each.token_ids),
            "logprobs": list(each.logprobs or ()),
            "versions": [[number_of(version), tokens] for version, tokens in each.spans],
        }
        for each in good
    ]
    value: Any = {
        "prompt_ids": list(good[0].prompt_ids),
        "samples": samples,
        "rows": [{} for _ in samples],
        "seconds": round(seconds, 4),
    }
    return Result(value=value)


def group_of(work: Work[RolloutItem]) -> Group:
    """Return the group as carried from the previous stage."""
    group: Group = (work.carry or {})["value"]
    return group


def samples_of(
    group: Group, work: Work[RolloutItem], stage: str, first: str, spec: ScoreSpec
) -> list[tuple[int, Work[ScoreItem]]]:
    """Return the samples that a reward stage must process, as items of a score job, with their indices in the group.

    A sample without a next stage in its row begins with `first`.
    """
    item = work.item
    found = []
    for place, (sample, row) in enumerate(zip(group["samples"], group["rows"], strict=True)):
        if row.get("next", first) != stage:
            continue
        scored = ScoreItem(
            group_id="group",
            prompt=item.prompt,
            response=sample["text"],
            reference=item.reference,
            response_tokens=len(sample["token_ids"]),
            metadata=item.metadata,
        )
        found.append((place, Work(place, scored, row or None, work.attempts, spec)))
    return found


def row_of(result: Result) -> dict[str, Any]:
    """Convert a sample's result to its row: the format that the next stage reads, and that `tasks/scoring` expects of
    carried results."""
    error = result.error
    return {
        "status": result.status,
        "score": result.score,
        "parts": dict(result.parts) if result.parts else None,
        "value": result.value,
        "error": {"type": error.type, "message": error.message, "retryable": False} if error else None,
        "cached": result.cached,
        "next": result.next,
    }


def finished(index: int, item: RolloutItem, group: Group, is_rewarded: bool, loaded_version: int) -> Result:
    """Build the final result of a group, with its bundle for the queue. If every reward failed, the group fails."""
    rows: Sequence[Mapping[str, Any]] = group["rows"]
    errors = [row["error"] for row in rows if row.get("error")]
    if is_rewarded and len(errors) == len(rows):
        return Result(error=ItemError(errors[0]["type"], errors[0]["message"]), value={"samples": len(rows)})
    samples = [
        _sample(sample, row, is_rewarded, loaded_version) for sample, row in zip(group["samples"], rows, strict=True)
    ]
    versions = [[number for number, _ in sample["versions"]] for sample in samples]
    flat = [number for each in versions for number in each]
    rewards = [sample["reward"] for sample in samples if sample["reward"] is not None]
    body = {
        "group_id": item.group_id or str(index if item.id is None else item.id),
        "index": index,
        "item": item.model_dump(mode="json"),
        "prompt_ids": group["prompt_ids"],
        "seconds": group["seconds"],
        "samples": samples,
    }
    bundle = Bundle(min(flat), max(flat), len(samples), sum(len(set(each)) > 1 for each in versions), body)
    tokens = sum(len(sample["token_ids"]) for sample in samples)
    return Result(
        score=sum(rewards) / len(rewards) if rewards else None,
        value={"samples": len(samples), "tokens": tokens},
        bundle=bundle,
    )


def _sample(sample: Mapping[str, Any], row: Mapping[str, Any], is_rewarded: bool, loaded: int) -> dict[str, Any]:
    error = row.get("error")
    return {
        **sample,
        # Version 0, the weights that the model was loaded with, counts as the version that the trainer began with.
        "versions": [[number or loaded, tokens] for number, tokens in sample["versions"]],
        "reward": None if error else row.get("score"),
        "valid": is_rewarded and not error,
        "parts": row.get("parts"),
        "error": {"type": error["type"], "message": error["message"]} if error else None,
    }
