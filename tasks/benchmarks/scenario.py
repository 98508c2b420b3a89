"""What a scenario is: a few cases with visible parameters, each measured by work that goes through the real door.

Its implementations are in `scenarios/`, by name in `catalogue.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import BaseModel

from tasks.benchmarks.model import Case, Figure, Measured, RunOptions, Size
from tasks.benchmarks.stand import Stand
from tasks.errors import Permanent

ParametersT = TypeVar("ParametersT", bound=BaseModel)

#: More slots than this are not told apart: a scenario that goes from one to all of them takes powers of two.
MOST_SLOTS = 64


class NotHere(Permanent):
    """This system lacks what the scenario needs."""


@dataclass(frozen=True, slots=True)
class Place:
    """What the system has, as far as scenarios depend on it."""

    slots: int
    """Device slots."""
    policy_servers: int
    """Device slots whose policy server is connected."""
    models: tuple[str, ...]
    """Models that jobs may name."""
    profiles: tuple[str, ...]
    """APIs that jobs may name."""
    policy_is_real: bool = False
    """Episodes are run by another than the development policy."""


class Scenario(Protocol[ParametersT]):
    name: str
    description: str
    parameters: type[ParametersT]
    figures: Sequence[Figure]

    def cases(self, place: Place, size: Size, options: RunOptions) -> Sequence[Case]:
        """Raises NotHere, with the reason, where there is nothing to measure."""

    def run(self, stand: Stand, parameters: ParametersT) -> Measured:
        """Measure one case once."""


def up_to(number: int) -> list[int]:
    """1, 2, 4, ... and the number itself."""
    number = min(number, MOST_SLOTS)
    found = [1]
    while found[-1] * 2 < number:
        found.append(found[-1] * 2)
    return [*found, number] if number > 1 else found
