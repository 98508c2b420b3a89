"""Environments by name."""

from tasks.episodes.model import Gymnasium, Libero, Reach
from workers.environments.environment import Environment
from workers.environments.reach import ReachEnvironment


def make_environment(options: Reach | Gymnasium | Libero) -> Environment:
    """Imports what it needs only now. Raises EnvironmentMissing or EnvironmentFailed."""
    match options:
        case Reach():
            return ReachEnvironment()
        case Gymnasium():
            from workers.environments.gymnasium_env import GymnasiumEnvironment

            return GymnasiumEnvironment(options)
        case Libero():
            from workers.environments.libero import LiberoEnvironment

            return LiberoEnvironment(options)


def needs_process(options: Reach | Gymnasium | Libero) -> bool:
    """Whether it must not share a process: it computes for long, holds a renderer, or draws from global chance."""
    return not isinstance(options, Reach)
