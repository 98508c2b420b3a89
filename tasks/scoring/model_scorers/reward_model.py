"""Model scorer `reward_model`: score of a sequence classifier."""

from collections.abc import Sequence

from pydantic import Field

from tasks.inference.engine import Engine, ModelRef, RewardRequest
from tasks.scoring.extraction import Reading
from tasks.scoring.model_scorer import ModelSample, ModelScorerOptions, ModelScores, model_scorer
from tasks.scoring.scorer import READ


class RewardModel(ModelScorerOptions):
    """Score of a reward model (sequence classification with a single label) for the response to its prompt.

    Both texts go through the model's chat template, if it has one. Input longer than the model's context loses its
    beginning.
    """

    read: Reading = Field("response", description=READ)
    model: str = Field("reward", min_length=1, max_length=500, description="Name of a reward model of the server.")
    sigmoid: bool = Field(False, description="Whether a sigmoid maps the score to 0..1.")


@model_scorer("reward_model", RewardModel)
def reward_model(engine: Engine, model: ModelRef, samples: Sequence[ModelSample], options: RewardModel) -> ModelScores:
    requests = [RewardRequest(each.prompt, each.text) for each in samples]
    scored = engine.reward(model, requests, options.sigmoid)
    return [each if isinstance(each, Exception) else each.value for each in scored]
