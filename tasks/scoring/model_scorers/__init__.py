"""Registry of the built-in scorers that run a model on a device. `tasks/scoring/model_scorer.py` defines the type."""

from typing import Any

from tasks.scoring.model_scorer import ModelScorer
from tasks.scoring.model_scorers.likelihood import logprob, perplexity
from tasks.scoring.model_scorers.reward_model import reward_model
from tasks.scoring.model_scorers.similarity import similarity

BUILT_IN: tuple[ModelScorer[Any], ...] = (reward_model, similarity, logprob, perplexity)
