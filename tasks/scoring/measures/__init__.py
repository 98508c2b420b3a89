"""Scorers that ask a model on a device. `tasks/scoring/measure.py` says what one is."""

from typing import Any

from tasks.scoring.measure import Measure
from tasks.scoring.measures.likelihood import logprob, perplexity
from tasks.scoring.measures.reward_model import reward_model
from tasks.scoring.measures.similarity import similarity

BUILT_IN: tuple[Measure[Any], ...] = (reward_model, similarity, logprob, perplexity)
