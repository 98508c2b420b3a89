"""Installation of the client without the server, into an empty environment of the oldest supported Python."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT
from tests.support.wire_server import WireServer

PROGRAM = """
import asyncio, sys
from assay import Assay, AsyncAssay, NotFound
from assay.rewards import LengthPenaltyRewardManager, Reward, swift, trl, verl

items = [{"id": str(n), "x": n} for n in range(6000)]
with Assay(sys.argv[1]) as client:
    job = client.score(iter(items), "numeric_match").wait(120)
    assert [row.index for row in job.results()] == list(range(6000))
    try:
        client.job("nobody")
    except NotFound:
        pass

async def main():
    async with AsyncAssay(sys.argv[1]) as client:
        job = await client.score(items, "numeric_match", on_error={"fill": 0.0})
        return len((await job.scores()).values)

assert asyncio.run(main()) == 6000
reward = Reward(["numeric_match"], url=sys.argv[1])
assert reward(["a", "b"], references=["1", "2"]) == asyncio.run(reward.call_async(["a", "b"])) == [0.0, 0.0]
reward.client.close()
assert verl.compute_score("x", "a", "1", url=sys.argv[1], reward=["numeric_match"])["valid"]
assert trl.TrlReward(["numeric_match"], url=sys.argv[1])(prompts=["p"], completions=["a"]) == [0.0]
assert not {"torch", "numpy"} & set(sys.modules)
print("passed")
"""


def oldest_python() -> str:
    """Return a Python 3.9 of this machine, or the Python that runs the tests if 3.9 is not installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in [shutil.which("python3.9"), *pyenv.glob("3.9.*/bin/python")]:
        # A pyenv shim may exist for a version that is not installed.
        if found and subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return str(found)
    return sys.executable


def test_the_client_installs_and_works_in_an_empty_environment(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ASSAY_", "PYTHON"))}

    def run(*argv: str) -> str:
        done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def install(requirement: str) -> None:
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement)

    run(oldest_python(), "-m", "venv", "env")
    python, assay = str(tmp_path / "env/bin/python"), str(tmp_path / "env/bin/assay")
    install(str(ROOT / "client"))
    assert "COMMAND" in run(assay, "--help")
    assert run(assay, "--version").startswith("assay-client 0.")
    installed = {each["name"] for each in json.loads(run(python, "-m", "pip", "list", "--format", "json"))}
    assert not installed & {"pydantic", "celery", "redis", "flask", "assay"}
    assert len(installed) <= 12, f"too many dependencies: {installed}"
    assert run(python, "-c", "import assay, os; print(os.path.exists(os.path.dirname(assay.__file__) + '/py.typed'))")
    with WireServer() as server:
        assert run(python, "-W", "error", "-c", PROGRAM, server.url) == "passed\n"
        assert "job-0" in run(assay, "status", "--url", server.url)

    missing = subprocess.run(
        [assay, "completion", "bash"], env=environment, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2
    assert "pip install 'shtab>=1.9'" in missing.stderr
    install(f"{ROOT / 'client'}[completion]")
    for shell in ("bash", "zsh", "fish"):
        assert "doctor" in run(assay, "completion", shell)
