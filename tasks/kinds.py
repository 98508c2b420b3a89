"""Table of job kinds. A new kind is a separate package, and one line here."""

from tasks.deployment_benchmarks.kind import Benchmark
from tasks.inference.kind import Inference
from tasks.jobs.kind import KindFactory
from tasks.judging.kind import Judge
from tasks.rollouts.kind import Rollout
from tasks.scoring.kind import Score
from tasks.simulated.kind import Simulated

KINDS: tuple[KindFactory, ...] = (
    Score.create,
    Judge.create,
    Inference.create,
    Rollout.create,
    Benchmark.create,
    Simulated.create,
)
