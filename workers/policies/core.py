"""Resources of a process that runs episodes, created once, and its status reports about its policy servers."""

import logging
import threading
from collections.abc import Sequence

from redis.exceptions import RedisError

from config.settings import Settings
from tasks.jobs.core import JobCore
from tasks.worker_registry import Worker
from workers.environments.rendering import has_osmesa, rendering_environment
from workers.environments.simulator_pool import Simulators
from workers.policies.connection import Limits
from workers.policies.episode_runner import EpisodeRunner
from workers.policies.pool import Pool
from workers.policies.server_leases import Leases, Owner
from workers.policies.servers.addresses import addresses

log = logging.getLogger(__name__)

#: Seconds between two status reports about the servers; readers trust a report for ten seconds.
TELL_S = 1.0


class Policies:
    """Episode runner with status reports. It connects at once, in its own threads. Create it in the process that uses
    it."""

    def __init__(self, core: JobCore, worker: Worker, urls: Sequence[str]) -> None:
        self._registry, self._worker = core.registry, worker
        owner = Leases(core.state, worker.name, worker.node)
        self.runner = create_runner(core.settings, urls, worker.devices, owner)
        self.runner.pool.warm()
        self._closed = threading.Event()
        threading.Thread(target=self._report, name="policies", daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self.runner.close()

    def _report(self) -> None:
        said = False
        while not self._closed.is_set():
            try:
                self._registry.report_policies(self._worker, self.runner.pool.status())
                said = False
            except RedisError as error:  # the report is repeated; episodes do not wait for it
                log.log(logging.DEBUG if said else logging.WARNING, "cannot report the policy servers: %s", error)
                said = True
            self._closed.wait(TELL_S)


def create_runner(
    settings: Settings, urls: Sequence[str], devices: Sequence[str], owner: Owner | None = None
) -> EpisodeRunner:
    """Create an episode runner. `urls`: the servers that this process uses; `devices`: its GPUs, on which simulators
    render. It connects when it is first used, or warmed; create it in the process that uses it."""
    # A server that still infers for a caller that gave up sends its greeting late: allow as long as for a reply.
    limits = Limits(greeting_s=settings.policy_reply_s, reply_s=settings.policy_reply_s)
    simulators = Simulators(
        settings.simulators_min, settings.scale_down_idle_s, rendering_environment(devices, has_osmesa())
    )
    # The development policy is optional: its outage is no reason for a warning.
    outage_level = logging.INFO if settings.uses_development_policy else logging.WARNING
    return EpisodeRunner(
        Pool(addresses(settings, urls), limits, owner, outage_level=outage_level),
        simulators,
        settings.policy_episodes,
        settings.policy_wait_s,
        settings.episode_s,
    )
