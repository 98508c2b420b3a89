"""What a process needs to run episodes, put together once; and what it tells the others of its servers."""

import logging
import threading
from collections.abc import Sequence

from redis.exceptions import RedisError

from config.settings import Settings
from tasks.jobs.core import JobCore
from tasks.registry import Worker
from workers.environments.rendering import has_osmesa, rendering_environment
from workers.environments.simulator_pool import Simulators
from workers.policies.connection import Limits
from workers.policies.episode_runner import EpisodeRunner
from workers.policies.pool import Pool
from workers.policies.server_leases import Leases, Owner
from workers.policies.servers.addresses import addresses

log = logging.getLogger(__name__)

#: Seconds between two words about the servers; others take them to be true for ten.
TELL_S = 1.0


class Policies:
    """Connects at once, in threads of its own; to be made in the process that uses it."""

    def __init__(self, core: JobCore, worker: Worker, urls: Sequence[str]) -> None:
        self._registry, self._worker = core.registry, worker
        owner = Leases(core.state, worker.name, worker.node)
        self.runner = create_runner(core.settings, urls, worker.devices, owner)
        self.runner.pool.warm()
        self._closed = threading.Event()
        threading.Thread(target=self._tell_on, name="policies", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self.runner.close()

    def _tell_on(self) -> None:
        said = False
        while not self._closed.is_set():
            try:
                self._registry.tell_policies(self._worker, self.runner.pool.status())
                said = False
            except RedisError as error:  # it is told again; episodes do not wait for it
                log.log(logging.DEBUG if said else logging.WARNING, "cannot tell of policy servers: %s", error)
                said = True
            self._closed.wait(TELL_S)


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
    # Where nobody has started the development policy, nobody misses it.
    outage_level = logging.INFO if settings.uses_development_policy else logging.WARNING
    return EpisodeRunner(
        Pool(addresses(settings, urls), limits, owner, outage_level=outage_level),
        simulators,
        settings.policy_episodes,
        settings.policy_wait_s,
        settings.episode_s,
    )
