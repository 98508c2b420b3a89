"""The measures of a batch: each asks its model about all items at once."""

import math
from collections.abc import Sequence

from tasks.errors import AssayError, CannotJudge
from tasks.inference.engine import Engine, Prompt
from tasks.inference.models import Models
from tasks.jobs.model import ItemError, Result
from tasks.scoring import registry
from tasks.scoring.measure import Measure, MeasureOptions, Subject
from tasks.scoring.model import ScoreItem, ScorerChoice, ScoreSpec
from tasks.scoring.reading import read


def measure_items(spec: ScoreSpec, items: Sequence[ScoreItem], engine: Engine, models: Models) -> list[Result]:
    """Parts by name. An item that one of them cannot measure has failed. Raises what concerns a whole model."""
    parts: list[dict[str, float]] = [{} for _ in items]
    failures: dict[int, Result] = {}
    for choice in spec.measures:
        found = registry.find(choice.name)
        assert isinstance(found, Measure)
        options = found.options.model_validate(choice.options)
        subjects = [_subject(item, options) for item in items]
        for at, number in enumerate(found.run(engine, models.local(options.model), subjects, options)):
            if isinstance(number, AssayError):
                failures.setdefault(at, _failure(choice, number))
            elif not math.isfinite(number):
                failures.setdefault(at, _failure(choice, CannotJudge("not_a_number", f"The model gave {number!r}.")))
            else:
                parts[at][choice.part] = float(number)
    return [failures.get(at) or Result(parts=parts[at]) for at in range(len(items))]


def _failure(choice: ScorerChoice, error: AssayError) -> Result:
    return Result(error=ItemError(error.name, f"{choice.part}: {error}"))


def _subject(item: ScoreItem, options: MeasureOptions) -> Subject:
    prompt: Prompt = item.prompt if isinstance(item.prompt, str) else _messages(item)
    return Subject(prompt, read(item.response, options.read, options.within, options.after), item.references)


def _messages(item: ScoreItem) -> Prompt:
    if item.prompt is None or isinstance(item.prompt, str):
        return item.prompt or ""
    return [message.model_dump(mode="json", exclude_none=True) for message in item.prompt]
