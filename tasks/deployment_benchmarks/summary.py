"""Aggregates the measurements of a run into figures: median and spread, compared with earlier runs."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.deployment_benchmarks.catalogue import SCENARIOS
from tasks.deployment_benchmarks.figure_history import FigureOfRun
from tasks.deployment_benchmarks.model import Measured, Outcome
from tasks.measurement.noise import band, has_regressed
from tasks.measurement.spread import spread_of

#: Function that returns the earlier values of a figure with the same basis, oldest first.
Earlier = Callable[[str, str], Sequence[float]]


@dataclass(frozen=True, slots=True)
class CaseOfRun:
    """Figures, errors and disturbances of a case in a run."""

    scenario: str
    case: str
    parameters: dict[str, Any]
    engine: str
    figures: tuple[FigureOfRun, ...]
    measurements: int
    disturbed: tuple[str, ...]
    errors: tuple[str, ...]


def summarize(outcomes: Sequence[Outcome], machine: str, earlier: Earlier) -> list[CaseOfRun]:
    """Aggregate the outcomes by case, in the order of the scenarios."""
    cases: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cases.setdefault((outcome.item.scenario, outcome.item.case), []).append(outcome)
    ordered = sorted(cases, key=lambda each: list(SCENARIOS).index(each[0]) if each[0] in SCENARIOS else 0)
    return [_case(scenario, case, cases[scenario, case], machine, earlier) for scenario, case in ordered]


def _case(scenario: str, case: str, outcomes: Sequence[Outcome], machine: str, earlier: Earlier) -> CaseOfRun:
    measured = [outcome.measured for outcome in outcomes if outcome.measured]
    quiet = [each for each in measured if not each.disturbed]
    parameters = outcomes[0].item.parameters
    engine = measured[0].engine if measured else ""
    about = json.dumps([machine, engine, parameters], sort_keys=True)
    basis = hashlib.sha256(about.encode()).hexdigest()[:16]
    figures = _figures(scenario, case, quiet or measured, basis, not quiet, earlier) if measured else ()
    return CaseOfRun(
        scenario,
        case,
        parameters,
        engine,
        figures,
        len(measured),
        tuple(dict.fromkeys(each.disturbed for each in measured if each.disturbed)),
        tuple(dict.fromkeys(outcome.error for outcome in outcomes if outcome.error)),
    )


def _figures(
    scenario: str, case: str, measured: Sequence[Measured], basis: str, is_disturbed: bool, earlier: Earlier
) -> tuple[FigureOfRun, ...]:
    found = []
    for figure in SCENARIOS[scenario].figures if scenario in SCENARIOS else ():
        values = [each.figures[figure.name] for each in measured if figure.name in each.figures]
        if not values:
            continue
        name = f"{scenario}/{case}/{figure.name}"
        usual = band(earlier(name, basis))
        spread = spread_of(values)
        found.append(
            FigureOfRun(
                figure=name,
                unit=figure.unit,
                better=figure.better,
                value=spread.middle,
                least=spread.least,
                most=spread.most,
                basis=basis,
                is_disturbed=is_disturbed,
                usual=usual.usual if usual else None,
                low=usual.low if usual else None,
                high=usual.high if usual else None,
                is_regression=not is_disturbed and has_regressed(spread, usual, figure.better),
            )
        )
    return tuple(found)
