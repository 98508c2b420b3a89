"""Measure `reward_model`."""

from collections.abc import Sequence

from pydantic import Field

from tasks.inference.engine import Engine, ModelRef, RewardRequest
from tasks.scoring.measure import Measured, MeasureOptions, Subject, measure
from tasks.scoring.reading import Reading
from tasks.scoring.scorer import READ


class RewardModel(MeasureOptions):
    """What a reward model (sequence classification with one label) makes of the response to its prompt.

    Both go through the model's chat template, if it has one. What is longer than the model takes loses its beginning.
    """

    read: Reading = Field("response", description=READ)
    model: str = Field("reward", min_length=1, max_length=500, description="A reward model of the server's.")
    sigmoid: bool = Field(False, description="Whether its number is brought to 0..1.")


@measure("reward_model", RewardModel)
def reward_model(engine: Engine, model: ModelRef, subjects: Sequence[Subject], options: RewardModel) -> Measured:
    requests = [RewardRequest(each.prompt, each.text) for each in subjects]
    scored = engine.reward(model, requests, options.sigmoid)
    return [each if isinstance(each, Exception) else each.value for each in scored]
