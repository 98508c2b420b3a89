"""The tables of docs/performance.md: what counts as met, and that no part of `make bench` is left out."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from bench import page
from bench.parts import PARTS
from bench.spread import Spread, is_met
from bench.supervised import ENDED
from tasks.benchmarks.machine import Machine
from tests.conftest import ROOT

MACHINE = Machine("A processor", 2, 8.0, "Linux", (), (), {"python": "3.12"}, "abc")
LINES = [page.Line("faster", 3.0, 2.5, 3.5, ">= 2"), page.Line("slower", 1.0, 1.0, 1.0, ">= 2")]


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [(20.0, ">= 20", True), (19.99, ">= 20", False), (1.25, "< 1.25", False), (1.2, "<= 1.2", True), (0, "0", True),
     (1, "0", False), (7.0, "none", True)],
)  # fmt: skip
def test_a_target_is_met_or_missed(value: float, target: str, expected: bool) -> None:
    assert is_met(value, target) is expected


def test_every_target_in_the_programs_can_be_read() -> None:
    """One that cannot would be found after minutes of measuring."""
    found = set()
    for file in (ROOT / "bench").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("line", "show"):
                target = node.args[2]
                if isinstance(target, ast.Constant) and is_met(1.0, str(target.value)) is not None:
                    found.add(target.value)
    assert len(found) > 15


def test_a_ratio_has_the_widest_range_that_its_sides_leave_room_for() -> None:
    assert Spread(4.0, 3.0, 6.0).over(Spread(2.0, 1.0, 3.0)) == Spread(2.0, 1.0, 6.0)
    assert Spread(4.0, 3.0, 6.0).over(2.0) == Spread(2.0, 1.5, 3.0)


def test_the_page_has_a_place_for_every_part() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert not [name for name in (*PARTS, "machine") if text.count(f"<!-- {name} -->") != 1]
    assert [part.title for part in PARTS.values()] == [
        line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")
    ]


def marked(page_file: Path, **tables: str) -> Path:
    page_file.write_text("\n".join(f"<!-- {name} -->\n{text}\n<!-- /{name} -->" for name, text in tables.items()))
    return page_file


def test_a_table_is_written_between_its_marks_and_what_was_not_measured_stays(tmp_path: Path) -> None:
    there = marked(tmp_path / "page.md", machine="", core="old", http="kept")
    result = page.Result("core", 0, 60.0, LINES)
    page.write(there, result, tmp_path, MACHINE)
    text = there.read_text()
    assert "| faster | 3.00 | 2.50 to 3.50 | >= 2 | met |\n| slower | 1.00 |  | >= 2 | **missed** |\n<!-- /core" in text
    assert "`make bench ARGS=core`, 60 seconds on " in text
    assert "A processor, 2 cores, 8 GB, Linux; no GPU. python 3.12." in text
    assert "kept" in text
    assert "old" not in text
    assert list(page.summary([result])) == ["1 of 2 targets met, in 60 seconds", "missed: slower: 1.00, target >= 2"]


def test_the_gpus_that_figures_were_measured_on_are_named(tmp_path: Path) -> None:
    there = marked(tmp_path / "page.md", machine="", core="")
    page.write(there, page.Result("core", 0, 60.0, LINES), tmp_path, replace(MACHINE, gpus=("A100", "A100")))
    assert "Linux; A100, A100. python 3.12." in there.read_text()
    assert "no GPU" not in there.read_text()


def test_a_failed_part_says_so_on_the_page_and_keeps_what_it_had_measured(tmp_path: Path) -> None:
    there = marked(tmp_path / "page.md", machine="", core="old", http="older")
    page.write(there, page.Result("core", 1, 60.0, LINES[:1], ["42 s"], "No space left"), tmp_path, MACHINE)
    page.write(there, page.Result("http", ENDED, 600.0, [], [], "waiting"), tmp_path, MACHINE)
    text = there.read_text()
    assert "**core failed (exit 1): No space left** What it had measured until then is below." in text
    assert "| faster | 3.00 | 2.50 to 3.50 | >= 2 | met |\n\n- 42 s\n<!-- /core -->" in text
    assert "**http was ended after 10 minutes: waiting**\n<!-- /http -->" in text
    assert "old" not in text
