"""TCP ports of a system: require that the configured ports are free, or replace taken ones by free ports."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass

from config.settings import Settings, variable
from tasks.errors import Permanent
from workers.processes.ports import LOOPBACK, bind_error, free_ports


@dataclass(frozen=True, slots=True)
class PortRange:
    """Consecutive ports that processes of the system listen on, and the setting that names the first."""

    setting: str
    host: str
    first: int
    number: int = 1

    @property
    def variable(self) -> str:
        return variable(self.setting)

    def problem(self) -> tuple[int, OSError] | None:
        """Return the first port that cannot be used, with the error; None if every port is free."""
        for port in range(self.first, self.first + self.number):
            if error := bind_error(self.host, port):
                return port, error
        return None

    def require_free(self) -> None:
        """Raise Permanent, with the remedy, if a port cannot be used."""
        if problem := self.problem():
            port, error = problem
            advice = f"stop the process that listens there, or choose another port with {self.variable}=..."
            if error.errno != errno.EADDRINUSE:
                advice = f"correct {self.variable.replace('PORT', 'HOST')}."
            raise Permanent(f"Port {port} on {self.host} cannot be used ({error.strerror}): {advice}") from error


def required_ports(settings: Settings, policy_servers: int, with_flower: bool) -> list[PortRange]:
    """Return the ports that a system listens on. `policy_servers`: number of policy servers that it starts."""
    ports = [PortRange("port", settings.host, settings.port)]
    if with_flower:
        ports.append(PortRange("flower_port", settings.flower_host, settings.flower_port))
    if settings.uses_development_api:
        ports.append(PortRange("development_api_port", LOOPBACK, settings.development_api_port))
    if policy_servers:
        ports.append(PortRange("policy_port", LOOPBACK, settings.policy_port, policy_servers))
    return ports


def replace_taken_ports(settings: Settings, ports: Sequence[PortRange]) -> dict[str, str]:
    """Return environment variables that name free ports in place of taken ones.

    Raises Permanent if a taken port was set explicitly: the user expects the system at this port.
    """
    replaced = {}
    for each in ports:
        problem = each.problem()
        if problem and (each.setting in settings.model_fields_set or problem[1].errno != errno.EADDRINUSE):
            each.require_free()
        elif problem:
            replaced[each.variable] = str(free_ports(each.number))
    return replaced
