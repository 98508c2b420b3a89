"""Model scorers `logprob` and `perplexity`: likelihood of a text under a language model."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from tasks.errors import AssayError, CannotJudge
from tasks.inference.engine import AnswerRequest, Engine, ModelRef
from tasks.scoring.extraction import Reading
from tasks.scoring.model_scorer import ModelSample, ModelScorerOptions, ModelScores, model_scorer
from tasks.scoring.scorer import READ

_MODEL = "Name of a language model of the server."


class Logprob(ModelScorerOptions):
    """Log-probability of the response after its prompt: the mean over its tokens, or their sum."""

    read: Reading = Field("response", description=READ)
    model: str = Field("smollm2", min_length=1, max_length=500, description=_MODEL)
    reduce: Literal["mean", "sum"] = Field("mean", description="Aggregation of the tokens' log-probabilities.")
    of: Literal["response", "reference"] = Field(
        "response", description="Text to score: the response, or the first reference."
    )


class Perplexity(ModelScorerOptions):
    """Perplexity of the response under a language model, without its prompt: 1 means fully predictable."""

    read: Reading = Field("response", description=READ)
    model: str = Field("smollm2", min_length=1, max_length=500, description=_MODEL)


@model_scorer("logprob", Logprob)
def logprob(engine: Engine, model: ModelRef, samples: Sequence[ModelSample], options: Logprob) -> ModelScores:
    texts = [_scored_text(each, options) for each in samples]
    asked = [AnswerRequest(each.prompt, text) for each, text in zip(samples, texts, strict=True) if text]
    found = iter(engine.likelihood(model, asked) if asked else [])
    scores: ModelScores = []
    for text in texts:
        result = next(found) if text else CannotJudge("text_empty", "The text to score is empty: give the item a text.")
        if isinstance(result, AssayError):
            scores.append(result)
        else:
            scores.append(result.mean if options.reduce == "mean" else result.total)
    return scores


@model_scorer("perplexity", Perplexity)
def perplexity(engine: Engine, model: ModelRef, samples: Sequence[ModelSample], options: Perplexity) -> ModelScores:
    del options
    scored = engine.perplexity(model, [each.text for each in samples])
    return [each if isinstance(each, AssayError) else each.value for each in scored]


def _scored_text(sample: ModelSample, options: Logprob) -> str:
    if options.of == "reference":
        return sample.references[0] if sample.references else ""
    return sample.text
