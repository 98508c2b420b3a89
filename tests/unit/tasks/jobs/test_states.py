"""States of jobs: defined once, in `tasks/jobs/states.py`."""

import re
from pathlib import Path
from typing import get_args

import pytest
from assay import model

from tasks import lua
from tasks.jobs import states
from tests.conftest import ROOT

STATES = get_args(states.JobState)
#: A comparison of a state with a literal, or an assignment of a literal to the field `state` of a job, in a Lua script.
LITERAL = re.compile(rf"state(?:'\s*,|\s*[=~]=)\s*'({'|'.join(STATES)})'|end_job\([^)]*'({'|'.join(STATES)})'\s*,")
SCRIPTS = sorted({*lua.scripts(), *ROOT.glob("*/**/scripts/include/*.lua")})


def test_active_and_ended_states_are_all_states() -> None:
    assert sorted((*states.ACTIVE, *states.ENDED)) == sorted(STATES)


@pytest.mark.parametrize("script", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in SCRIPTS])
def test_a_script_takes_job_states_from_the_constants(script: Path) -> None:
    assert not LITERAL.findall(script.read_text())


def test_the_client_has_the_states_of_the_server() -> None:
    assert (model.RUNNABLE, model.ENDED) == (states.RUNNABLE, states.ENDED)


def test_the_dashboard_has_no_list_of_active_states() -> None:
    for path in (ROOT / "web/static/dashboard").glob("*.js"):
        assert not re.search(r'\[[^\]]*"queued"[^\]]*"reopening"', path.read_text()), path
