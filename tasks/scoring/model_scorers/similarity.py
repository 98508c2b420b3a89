"""Model scorer `similarity`: cosine similarity of embeddings."""

from collections.abc import Sequence

from pydantic import Field

from tasks.errors import AssayError, CannotJudge
from tasks.inference.engine import Engine, ModelRef
from tasks.scoring.model_scorer import ModelSample, ModelScorerOptions, ModelScores, model_scorer


class Similarity(ModelScorerOptions):
    """Similarity in meaning of the response to its reference: the cosine of their embeddings, from -1 to 1.

    With several references, the closest reference counts.
    """

    model: str = Field("minilm", min_length=1, max_length=500, description="Name of an embedding model of the server.")


@model_scorer("similarity", Similarity)
def similarity(engine: Engine, model: ModelRef, samples: Sequence[ModelSample], options: Similarity) -> ModelScores:
    del options
    pairs = [(each.text, reference) for each in samples for reference in each.references]
    scored = iter(engine.similarity(model, pairs) if pairs else [])
    scores: ModelScores = []
    for sample in samples:
        own = [next(scored) for _ in sample.references]
        error = next((result for result in own if isinstance(result, AssayError)), None)
        if not own:
            error = CannotJudge("reference_missing", "The item has no `reference` to compare with: add one.")
        scores.append(error or max(result.value for result in own if not isinstance(result, AssayError)))
    return scores
