"""Every command of docs/api.md, as it stands there, against the real processes."""

import gzip
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.end_to_end.api import Served
from tests.end_to_end.system import System
from tests.support.programs import PATIENCE_S, Program

GUIDE = (ROOT / "docs/api.md").read_text()
#: Prints the status of each answer. A command that hangs ends with the status 000.
CURL = (
    f"curl() {{ command curl --silent --max-time {PATIENCE_S:.0f} --output /dev/null "
    """--write-out '%{http_code} %{url}\\n' "$@"; }\n"""
)


@pytest.mark.skipif(not shutil.which("curl"), reason="the guide's commands are curl's")
def test_the_commands_of_the_guide_work(run: Callable[..., Program], system: System, tmp_path: Path) -> None:
    served = Served(run, system.state.url, ASSAY_CACHE_URL=system.cache.url)
    job = served.submit({"x": 1}, {"x": 2, "fail": True})
    system.finish(job)
    label = {"response": "It is 5.", "reference": "5", "label": 10}
    old = served.submit({"x": 3})
    judged = served.submit(label, kind="judge", spec={"profile": "development", "mode": "reference"})
    (tmp_path / "items.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    (tmp_path / "items.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n'))
    script = CURL + "\n".join(block for block in re.findall(r"(?s)```\n(.*?)```", GUIDE) if "curl" in block)
    script = script.replace("> results.jsonl", "")  # the test reads only the status of the answer
    environment = os.environ | {"API": f"http://127.0.0.1:{served.port}", "JOB": job, "OLD_JOB": old, "JUDGED": judged}
    ended = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    answers = ended.stdout.splitlines()
    assert len(answers) == len(re.findall(r"(?m)(?:^|; )curl ", GUIDE))
    # 409: the API does not cancel a job that has ended, nor pause it after it has run again.
    assert {answer for answer in answers if not answer.startswith(("200", "202", "409"))} == set(), ended.stdout
    assert sum(answer.startswith("409") for answer in answers) <= 2, ended.stdout
