"""Measures `logprob` and `perplexity`."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from tasks.errors import AssayError, CannotJudge
from tasks.inference.engine import AnswerRequest, Engine, ModelRef
from tasks.scoring.measure import Measured, MeasureOptions, Subject, measure
from tasks.scoring.reading import Reading
from tasks.scoring.scorer import READ

_MODEL = "A language model of the server's."


class Logprob(MeasureOptions):
    """The log-probability of the response after its prompt: the mean over its tokens, or their sum."""

    read: Reading = Field("response", description=READ)
    model: str = Field("smollm2", min_length=1, max_length=500, description=_MODEL)
    reduce: Literal["mean", "sum"] = Field("mean", description="How the tokens' log-probabilities become one number.")
    of: Literal["response", "reference"] = Field(
        "response", description="What is given to the model: the response, or the first reference."
    )


class Perplexity(MeasureOptions):
    """How surprising the response is to a language model, without its prompt: 1 is not at all."""

    read: Reading = Field("response", description=READ)
    model: str = Field("smollm2", min_length=1, max_length=500, description=_MODEL)


@measure("logprob", Logprob)
def logprob(engine: Engine, model: ModelRef, subjects: Sequence[Subject], options: Logprob) -> Measured:
    texts = [_given(each, options) for each in subjects]
    asked = [AnswerRequest(each.prompt, text) for each, text in zip(subjects, texts, strict=True) if text]
    found = iter(engine.likelihood(model, asked) if asked else [])
    measured: Measured = []
    for text in texts:
        one = next(found) if text else CannotJudge("text_empty", "There is no text whose probability could be told.")
        if isinstance(one, AssayError):
            measured.append(one)
        else:
            measured.append(one.mean if options.reduce == "mean" else one.total)
    return measured


@measure("perplexity", Perplexity)
def perplexity(engine: Engine, model: ModelRef, subjects: Sequence[Subject], options: Perplexity) -> Measured:
    del options
    scored = engine.perplexity(model, [each.text for each in subjects])
    return [each if isinstance(each, AssayError) else each.value for each in scored]


def _given(subject: Subject, options: Logprob) -> str:
    if options.of == "reference":
        return subject.references[0] if subject.references else ""
    return subject.text
