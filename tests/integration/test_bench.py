"""`python -m bench` without anybody watching: parts that fail or hang, and what is left of them."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT

#: Runs these parts instead of the real ones, and writes to this page.
RUN = """
import sys
from pathlib import Path
from bench import __main__ as bench, supervised
from bench.parts import PARTS, Part
PARTS.clear()
PARTS.update({parts})
supervised.run.__defaults__ = (2.0,)
bench.PAGE = Path({page!r})
sys.exit(bench.main(["--write", "--output", {output!r}, *sys.argv[1:]]))
"""
GOOD = "from bench.spread import line; line('fast', 3.0, '>= 2')"
BAD = "from bench.spread import line; line('early', 3.0, '>= 2'); raise SystemExit('no space left')"
#: Detached, without a parent, deaf to all that can be heard, and holding what its part prints to.
ORPHAN = (
    "import os, signal, sys, time; os.setsid(); "
    "[signal.signal(each, signal.SIG_IGN) for each in (2, 15)]; open(sys.argv[1], 'w').write(str(os.getpid())); "
    "time.sleep(600)"
)
LEAVES = (
    "import subprocess, sys, time, pathlib, os; "
    "subprocess.Popen([sys.executable, '-c', {orphan!r}, {file!r}])\n"
    "while not (pathlib.Path({file!r}).exists() and pathlib.Path({file!r}).read_text()): time.sleep(0.05)\n"
)


def run(tmp_path: Path, parts: dict[str, str], *arguments: str, minutes: float = 1.0) -> tuple[int, str, str]:
    """Exit code, what was printed, and the page."""
    page = tmp_path / "page.md"
    page.write_text("\n".join(f"<!-- {name} -->\nold {name}\n<!-- /{name} -->" for name in ("machine", *parts)))
    made = ", ".join(f"{name!r}: Part({name!r}, {minutes}, ('-c', {code!r}))" for name, code in parts.items())
    program = RUN.format(parts=f"{{{made}}}", page=str(page), output=str(tmp_path / "results"))
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    return ended.returncode, ended.stdout + ended.stderr, page.read_text()


def test_a_part_that_fails_is_told_and_the_others_are_measured(tmp_path: Path) -> None:
    code, printed, page = run(tmp_path, {"bad": BAD, "killed": "import os; os.kill(os.getpid(), 9)", "good": GOOD})
    assert code == 1
    assert "2 of 2 targets met" in printed
    assert "**bad failed (exit 1): no space left** What it had" in page
    assert "| early | 3.00 |" in page
    assert "**killed failed (exit -9): **" in page
    assert "| fast | 3.00 |  | >= 2 | met |" in page


def test_ways_to_use_a_model_are_measured_by_turns() -> None:
    from bench.engines import measure

    begun: list[str] = []

    def way(name: str) -> int:
        begun.append(name)
        sum(range(10_000))  # a rate takes some time
        return 1

    found = measure("prompts", {name: partial(way, name) for name in ("plain", "ours")}, "tokens", times=3)
    assert begun == ["plain", "ours"] * 3
    assert found["ours"].least <= found["ours"].middle <= found["ours"].most


def test_only_the_parts_asked_for_are_written(tmp_path: Path) -> None:
    code, _, page = run(tmp_path, {"bad": BAD, "good": GOOD}, "good")
    assert code == 0
    assert "old bad" in page
    assert "old good" not in page


def test_a_part_that_hangs_is_ended_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    file = str(tmp_path / "pid")
    hangs = LEAVES.format(orphan=ORPHAN, file=file) + "time.sleep(600)"
    code, _, page = run(tmp_path, {"hangs": hangs, "good": GOOD}, minutes=0.1)
    assert code == 1
    assert "**hangs was ended after " in page
    assert "| fast | 3.00 |" in page
    assert not psutil.pid_exists(int(Path(file).read_text()))


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)"])
def test_what_a_part_left_running_is_killed(tmp_path: Path, end: str) -> None:
    file = str(tmp_path / "pid")
    started = time.monotonic()
    _, printed, page = run(tmp_path, {"leaves": LEAVES.format(orphan=ORPHAN, file=file) + end, "good": GOOD})
    assert time.monotonic() - started < 60, "what holds the pipe does not hold us"
    assert "left running, and killed" in printed
    assert not psutil.pid_exists(int(Path(file).read_text()))
    assert "| fast | 3.00 |" in page


def test_an_interrupt_keeps_what_was_finished(tmp_path: Path) -> None:
    page, file = tmp_path / "page.md", tmp_path / "pid"
    page.write_text("".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in ("machine", "good", "long")))
    slow = f"import pathlib, time, os; pathlib.Path({str(file)!r}).write_text(str(os.getpid())); time.sleep(600)"
    parts = f"{{'good': Part('good', 1, ('-c', {GOOD!r})), 'long': Part('long', 1, ('-c', {slow!r}))}}"
    program = RUN.format(parts=parts, page=str(page), output=str(tmp_path / "results"))
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        while not (file.exists() and file.read_text()):
            time.sleep(0.05)
        running.terminate()
        printed, _ = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "1 of 1 targets met" in printed
    assert "| fast | 3.00 |" in page.read_text()
    assert not psutil.pid_exists(int(file.read_text()))
