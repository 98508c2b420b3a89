"""From several scorers to one score: parts by name, weights, gates. What one of them cannot judge has failed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from tasks.errors import CannotJudge
from tasks.jobs.model import ItemError, Result
from tasks.scoring import registry
from tasks.scoring.messages import transcript
from tasks.scoring.model import ScoreItem, ScorerChoice, ScoreSpec
from tasks.scoring.reading import read
from tasks.scoring.scorer import Options, Sample, Scorer


class Judge(Protocol):
    """Where an isolated scorer runs."""

    def judge(self, scorer: Scorer[Any], options: Options, sample: Sample) -> float: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    choice: ScorerChoice
    scorer: Scorer[Any]
    options: Options


def prepare(spec: ScoreSpec) -> tuple[Prepared, ...]:
    """The scorers with their options read, once for many items."""
    found = [(choice, registry.find(choice.name)) for choice in spec.scorers]
    return tuple(
        Prepared(choice, each, each.options.model_validate(choice.options))
        for choice, each in found
        if isinstance(each, Scorer)
    )


def score_item(
    spec: ScoreSpec,
    prepared: Sequence[Prepared],
    item: ScoreItem,
    isolation: Judge,
    measured: Mapping[str, float] | None = None,
) -> Result:
    """All scorers run, whatever the gates say, so that every item shows the same parts; those of models have run."""
    parts: dict[str, float] = dict(measured or {})
    for each in prepared:
        try:
            parts[each.choice.part] = _judge(each, item, isolation)
        except CannotJudge as error:
            return Result(error=ItemError(error.reason, f"{each.choice.part}: {error}"))
        except Exception as error:  # noqa: BLE001  # whatever goes wrong in a scorer is this item's outcome, not its batch's
            message = f"{each.choice.part}: {type(error).__name__}: {error}"
            return Result(error=ItemError("scorer_failed", message[:1000]))
    return Result(score=combine(spec, parts), parts=parts)


def combine(spec: ScoreSpec, parts: dict[str, float]) -> float:
    """0 when a gate does not hold; otherwise the weighted mean, or sum, of the scorers that are no gates."""
    if not all(choice.holds(parts[choice.part]) for choice in spec.scorers if choice.gate):
        return 0.0
    counted = [choice for choice in spec.scorers if not choice.gate]
    total = math.fsum(choice.weight * parts[choice.part] for choice in counted)
    return total if spec.combine == "sum" else total / math.fsum(choice.weight for choice in counted)


def _judge(each: Prepared, item: ScoreItem, isolation: Judge) -> float:
    sample = Sample(
        text=read(item.response, each.options.read, each.options.within, each.options.after),
        references=item.references,
        prompt=transcript(item.prompt or ""),
        metadata=item.metadata,
    )
    if each.scorer.isolated:
        score = isolation.judge(each.scorer, each.options, sample)
    else:
        score = each.scorer.judge(sample, each.options)
    if not isinstance(score, Real) or not math.isfinite(score):
        raise CannotJudge("not_a_number", f"The scorer returned {score!r}.")
    return float(score)
