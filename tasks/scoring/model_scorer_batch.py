"""Run of the model scorers of a batch: each scorer passes the whole batch to its model at once."""

import math
from collections.abc import Sequence

from tasks.errors import AssayError, CannotJudge
from tasks.inference.engine import Engine, Prompt
from tasks.inference.models import Models
from tasks.jobs.model import ItemError, Result
from tasks.scoring import registry
from tasks.scoring.extraction import extract_text
from tasks.scoring.model import ScoreItem, ScorerChoice, ScoreSpec
from tasks.scoring.model_scorer import ModelSample, ModelScorer, ModelScorerOptions


def run_model_scorers(spec: ScoreSpec, items: Sequence[ScoreItem], engine: Engine, models: Models) -> list[Result]:
    """Return the parts of each item; an item fails when any scorer fails on it. Raises errors of the model itself."""
    parts: list[dict[str, float]] = [{} for _ in items]
    failures: dict[int, Result] = {}
    for choice in spec.model_scorers:
        found = registry.find(choice.name)
        assert isinstance(found, ModelScorer)
        options = found.options.model_validate(choice.options)
        samples = [_sample(item, options) for item in items]
        for at, number in enumerate(found.run(engine, models.local(options.model), samples, options)):
            if isinstance(number, AssayError):
                failures.setdefault(at, _failure(choice, number))
            elif not math.isfinite(number):
                error = CannotJudge("not_a_number", f"The model returned {number!r}.")
                failures.setdefault(at, _failure(choice, error))
            else:
                parts[at][choice.part] = float(number)
    return [failures.get(at) or Result(parts=parts[at]) for at in range(len(items))]


def _failure(choice: ScorerChoice, error: AssayError) -> Result:
    return Result(error=ItemError(error.name, f"{choice.part}: {error}"))


def _sample(item: ScoreItem, options: ModelScorerOptions) -> ModelSample:
    prompt: Prompt = item.prompt if isinstance(item.prompt, str) else _messages(item)
    return ModelSample(
        prompt, extract_text(item.response, options.read, options.within, options.after), item.references
    )


def _messages(item: ScoreItem) -> Prompt:
    if item.prompt is None or isinstance(item.prompt, str):
        return item.prompt or ""
    return [message.model_dump(mode="json", exclude_none=True) for message in item.prompt]
