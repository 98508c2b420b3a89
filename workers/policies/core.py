"""What a process needs to run episodes, put together from its settings."""

from collections.abc import Sequence

from config.settings import Settings
from workers.environments.rendering import has_osmesa, rendering_environment
from workers.environments.simulators import Simulators
from workers.policies.connection import Limits
from workers.policies.episodes import EpisodeRunner
from workers.policies.owner import Owner
from workers.policies.pool import Pool
from workers.policy_servers.servers import addresses


def create_runner(
    settings: Settings, urls: Sequence[str], devices: Sequence[str], owner: Owner | None = None
) -> EpisodeRunner:
    """`urls`: the servers that this process uses; `devices`: its GPUs, beside which simulators render. Connects when it
    is first used, or warmed; to be made in the process that uses it."""
    # Greeted late by a server that still infers for a caller who has given up: as patient as with a reply.
    limits = Limits(greeting_s=settings.policy_reply_s, reply_s=settings.policy_reply_s)
    simulators = Simulators(
        settings.simulators_min, settings.scale_down_idle_s, rendering_environment(devices, has_osmesa())
    )
    return EpisodeRunner(
        Pool(addresses(settings, urls), limits, owner),
        simulators,
        settings.policy_episodes,
        settings.policy_wait_s,
        settings.episode_s,
    )
