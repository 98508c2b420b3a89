"""Measure `similarity`."""

from collections.abc import Sequence

from pydantic import Field

from tasks.errors import AssayError, CannotJudge
from tasks.inference.engine import Engine, ModelRef
from tasks.scoring.measure import Measured, MeasureOptions, Subject, measure


class Similarity(MeasureOptions):
    """How close in meaning the response is to its reference: the cosine of their embeddings, from -1 to 1.

    Of several references the closest counts.
    """

    model: str = Field("minilm", min_length=1, max_length=500, description="An embedding model of the server's.")


@measure("similarity", Similarity)
def similarity(engine: Engine, model: ModelRef, subjects: Sequence[Subject], options: Similarity) -> Measured:
    del options
    pairs = [(each.text, reference) for each in subjects for reference in each.references]
    scored = iter(engine.similarity(model, pairs) if pairs else [])
    measured: Measured = []
    for each in subjects:
        own = [next(scored) for _ in each.references]
        broken = next((one for one in own if isinstance(one, AssayError)), None)
        if not own:
            broken = CannotJudge("reference_missing", "The item has no `reference` to compare with.")
        measured.append(broken or max(one.value for one in own if not isinstance(one, AssayError)))
    return measured
