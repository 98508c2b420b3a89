"""Combination of several scorers to a score: parts by name, weights, gates. A scorer that fails, fails the item."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

from tasks.errors import CannotJudge
from tasks.jobs.model import ItemError, Result
from tasks.scoring import registry
from tasks.scoring.extraction import extract_text
from tasks.scoring.messages import prompt_text
from tasks.scoring.model import ScoreItem, ScorerChoice, ScoreSpec
from tasks.scoring.scorer import Options, Sample, Scorer


class IsolatedRunner(Protocol):
    """Runs an isolated scorer outside this process."""

    def score(self, scorer: Scorer[Any], options: Options, sample: Sample) -> float: ...


@dataclass(frozen=True, slots=True)
class PreparedScorer:
    choice: ScorerChoice
    scorer: Scorer[Any]
    options: Options


def prepare_scorers(spec: ScoreSpec) -> tuple[PreparedScorer, ...]:
    """Parse the options of the spec's rule scorers, once for many items."""
    found = [(choice, registry.find(choice.name)) for choice in spec.scorers]
    return tuple(
        PreparedScorer(choice, each, each.options.model_validate(choice.options))
        for choice, each in found
        if isinstance(each, Scorer)
    )


def score_item(
    spec: ScoreSpec,
    prepared: Sequence[PreparedScorer],
    item: ScoreItem,
    isolation: IsolatedRunner,
    measured: Mapping[str, float] | None = None,
) -> Result:
    """Run the rule scorers and combine the parts; `measured` has the parts of model scorers, which ran before.

    Gates skip no scorer, so that every item has the same parts.
    """
    parts: dict[str, float] = dict(measured or {})
    for each in prepared:
        try:
            parts[each.choice.part] = _judge(each, item, isolation)
        except CannotJudge as error:
            return Result(error=ItemError(error.reason, f"{each.choice.part}: {error}"))
        except Exception as error:  # noqa: BLE001  # any error of a scorer fails this item, not its batch
            message = f"{each.choice.part}: {type(error).__name__}: {error}"
            return Result(error=ItemError("scorer_failed", message[:1000]))
    return Result(score=combine(spec, parts), parts=parts)


def combine(spec: ScoreSpec, parts: dict[str, float]) -> float:
    """Return 0 when a gate does not pass; otherwise the weighted mean, or sum, of the scorers that are no gates."""
    if not all(choice.passes(parts[choice.part]) for choice in spec.scorers if choice.gate):
        return 0.0
    counted = [choice for choice in spec.scorers if not choice.gate]
    total = math.fsum(choice.weight * parts[choice.part] for choice in counted)
    return total if spec.combine == "sum" else total / math.fsum(choice.weight for choice in counted)


def _judge(each: PreparedScorer, item: ScoreItem, isolation: IsolatedRunner) -> float:
    sample = Sample(
        text=extract_text(item.response, each.options.read, each.options.within, each.options.after),
        references=item.references,
        prompt=prompt_text(item.prompt or ""),
        metadata=item.metadata,
    )
    if each.scorer.isolated:
        score = isolation.score(each.scorer, each.options, sample)
    else:
        score = each.scorer.score(sample, each.options)
    if not isinstance(score, Real) or not math.isfinite(score):
        raise CannotJudge("not_a_number", f"The scorer returned {score!r}.")
    return float(score)
