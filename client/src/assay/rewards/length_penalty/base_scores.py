"""Base scores by the trainer's own `compute_score`, in verl's form. Runs in the calling thread, because many such
functions use signals for their timeouts, which work only in the main thread."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from assay.rewards.length_penalty.dataproto import Sample

log = logging.getLogger(__name__)

ComputeScore = Callable[..., Any]


@dataclass
class BaseScores:
    scores: list[float | None]
    """The score of each sample; None if it was not a finite number, which counts as a failure."""
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """The other returned values by name; each list has an entry for every sample."""


def compute_base_scores(compute_score: ComputeScore, samples: Sequence[Sample]) -> BaseScores:
    """Call `compute_score` for each sample. Exceptions of `compute_score` propagate."""
    computed = BaseScores([])
    for index, sample in enumerate(samples):
        result = compute_score(
            data_source=sample.data_source,
            solution_str=sample.response,
            ground_truth=sample.ground_truth,
            extra_info=dict(sample.extra_info),
        )
        rest: Mapping[str, Any] = {}
        if isinstance(result, Mapping):
            result, rest = result["score"], {name: value for name, value in result.items() if name != "score"}
        score = float(result)
        if not math.isfinite(score):
            log.warning("compute_score returned %s for sample %d: the sample counts as failed", score, index)
        computed.scores.append(score if math.isfinite(score) else None)
        for name, value in rest.items():
            computed.extra.setdefault(str(name), [None] * index).append(value)
        for values in computed.extra.values():
            if len(values) <= index:
                values.append(None)
    return computed
