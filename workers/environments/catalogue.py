"""Catalogue of the environments, by the type of their options."""

from tasks.episodes.model import Gymnasium, Libero, Reach
from workers.environments.environment import Environment
from workers.environments.reach import ReachEnvironment


def make_environment(options: Reach | Gymnasium | Libero) -> Environment:
    """Create an environment; its packages are imported only now. Raises EnvironmentMissing or EnvironmentFailed."""
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
    """Check whether it needs its own process: it computes for long, has a renderer, or uses a global generator."""
    return not isinstance(options, Reach)
