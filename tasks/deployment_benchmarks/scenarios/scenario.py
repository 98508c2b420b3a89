"""Interface of a scenario: cases with explicit parameters, each measured with real jobs of the deployment.

The implementations are modules of this package; `catalogue.py` registers them by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import BaseModel

from tasks.deployment_benchmarks.deployment import Deployment
from tasks.deployment_benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.errors import Permanent

ParametersT = TypeVar("ParametersT", bound=BaseModel)

#: Maximum number of device slots that scenarios use. A scenario measures powers of two up to the number of slots.
MOST_SLOTS = 64


class ScenarioUnavailable(Permanent):
    """The deployment lacks a resource that the scenario needs."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Resources of the deployment that scenarios depend on."""

    slots: int
    """Number of device slots."""
    policy_servers: int
    """Number of device slots with a connected policy server."""
    models: tuple[str, ...]
    """Names of the configured models."""
    profiles: tuple[str, ...]
    """Names of the configured API profiles."""
    policy_is_real: bool = False
    """Whether episodes run on a policy other than the development policy."""


class Scenario(Protocol[ParametersT]):
    """A benchmark scenario."""

    name: str
    description: str
    parameters: type[ParametersT]
    figures: Sequence[Figure]

    def cases(self, capabilities: Capabilities, size: Size, options: RunOptions) -> Sequence[Case]:
        """Return the cases for this deployment. Raises ScenarioUnavailable, with the reason, if it can run none."""

    def run(self, deployment: Deployment, parameters: ParametersT) -> Measured:
        """Measure a case once."""


def slot_counts(number: int) -> list[int]:
    """Return 1, 2, 4, ... and the number itself."""
    number = min(number, MOST_SLOTS)
    found = [1]
    while found[-1] * 2 < number:
        found.append(found[-1] * 2)
    return [*found, number] if number > 1 else found
