"""Unattended runs of `python -m bench`: parts that fail, hang, are interrupted or leave processes behind."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.support.programs import PATIENCE_S, wait_until

#: Program that runs the given parts instead of the real parts, and writes the tables of the given page.
RUN = """
import sys
from pathlib import Path
from bench import __main__ as bench
from bench.processes import supervised_program
from bench.catalogue import PARTS, Part
PARTS.clear()
PARTS.update({parts})
supervised_program.run.__defaults__ = (2.0,)
bench.PAGE = Path({page!r})
sys.exit(bench.main(["--write", "--output", {output!r}, *sys.argv[1:]]))
"""
GOOD = "from bench.report.figures import line; line('fast', 3.0, '>= 2')"
BAD = "from bench.report.figures import line; line('early', 3.0, '>= 2'); raise SystemExit('no space left')"
#: A detached process without a parent that ignores SIGINT and SIGTERM and keeps the output pipe of its part open.
ORPHAN = (
    "import os, signal, sys, time; os.setsid(); "
    "[signal.signal(each, signal.SIG_IGN) for each in (2, 15)]; open(sys.argv[1], 'w').write(str(os.getpid())); "
    "time.sleep(3600)"
)
LEAVES = (
    "import subprocess, sys, time, pathlib, os; "
    "subprocess.Popen([sys.executable, '-c', {orphan!r}, {file!r}])\n"
    "while not (pathlib.Path({file!r}).exists() and pathlib.Path({file!r}).read_text()): time.sleep(0.05)\n"
)


def run(
    tmp_path: Path, parts: dict[str, str], *arguments: str, limits: dict[str, float] | None = None
) -> tuple[int, str, str]:
    """Run the benchmark runner. Returns its exit code, its output and the page.

    `limits`: time limits in minutes by part; other parts may take an hour.
    """
    page = tmp_path / "page.md"
    page.write_text("\n".join(f"<!-- {name} -->\nold {name}\n<!-- /{name} -->" for name in ("machine", *parts)))
    minutes = dict.fromkeys(parts, 60.0) | (limits or {})
    made = ", ".join(f"{name!r}: Part({name!r}, {minutes[name]}, ('-c', {code!r}))" for name, code in parts.items())
    program = RUN.format(parts=f"{{{made}}}", page=str(page), output=str(tmp_path / "results"))
    argv = [sys.executable, "-c", program, *arguments]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    return ended.returncode, ended.stdout + ended.stderr, page.read_text()


def test_a_failed_part_is_reported_and_the_remaining_parts_run(tmp_path: Path) -> None:
    code, printed, page = run(tmp_path, {"bad": BAD, "killed": "import os; os.kill(os.getpid(), 9)", "good": GOOD})
    assert code == 1
    assert "2 of 2 targets met" in printed
    assert "**bad failed (exit 1): no space left** The table has" in page
    assert "| early | 3.00 |" in page
    assert "**killed failed (exit -9): **" in page
    assert "| fast | 3.00 |  | >= 2 | met |" in page


def test_variants_of_a_measurement_alternate() -> None:
    from bench.parts.engines import measure

    begun: list[str] = []

    def variant(name: str) -> int:
        begun.append(name)
        sum(range(10_000))  # takes measurable time
        return 1

    found = measure("prompts", {name: partial(variant, name) for name in ("plain", "ours")}, "tokens", times=3)
    assert begun == ["plain", "ours"] * 3
    assert found["ours"].least <= found["ours"].middle <= found["ours"].most


def test_only_the_requested_parts_are_run_and_written(tmp_path: Path) -> None:
    code, _, page = run(tmp_path, {"bad": BAD, "good": GOOD}, "good")
    assert code == 0
    assert "old bad" in page
    assert "old good" not in page


def test_a_part_that_exceeds_its_time_limit_is_stopped_with_all_its_processes(tmp_path: Path) -> None:
    file = str(tmp_path / "pid")
    hangs = LEAVES.format(orphan=ORPHAN, file=file) + "time.sleep(600)"
    code, _, page = run(tmp_path, {"hangs": hangs, "good": GOOD}, limits={"hangs": 0.2})
    assert code == 1
    assert "**hangs exceeded its time limit after " in page
    assert "| fast | 3.00 |" in page
    assert not psutil.pid_exists(int(Path(file).read_text()))


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_leftover_processes_of_a_part_are_killed(tmp_path: Path, end: str) -> None:
    file = str(tmp_path / "pid")
    # The orphan holds the pipe for longer than this test may take: bench must not wait for the end of its output.
    _, printed, page = run(tmp_path, {"leaves": LEAVES.format(orphan=ORPHAN, file=file) + end, "good": GOOD})
    assert "killed a leftover process" in printed
    assert not psutil.pid_exists(int(Path(file).read_text()))
    assert "| fast | 3.00 |" in page


def test_an_interrupt_keeps_the_tables_of_finished_parts(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "pid"
    page.write_text("".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in ("machine", "good", "long")))
    slow = f"import pathlib, time, os; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    parts = f"{{'good': Part('good', 1, ('-c', {GOOD!r})), 'long': Part('long', 1, ('-c', {slow!r}))}}"
    program = RUN.format(parts=parts, page=str(page), output=str(tmp_path / "results"))
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        wait_until(lambda: file.exists() and file.read_text(), "the long part runs")
        running.terminate()
        printed, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130
    assert "1 of 1 targets met" in printed
    assert "| fast | 3.00 |" in page.read_text()
    assert not psutil.pid_exists(int(file.read_text()))
