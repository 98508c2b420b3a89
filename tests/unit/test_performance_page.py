"""The tables of docs/performance.md: targets, marks, failed parts, and completeness."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from bench.catalogue import PARTS
from bench.processes.supervised_program import ENDED
from bench.report import performance_page as page
from bench.report.figures import is_met
from tasks.measurement.machine import Machine
from tests.conftest import ROOT

MACHINE = Machine("A processor", 2, 8.0, "Linux", (), (), {"python": "3.12"}, "abc")
LINES = [page.Line("faster", 3.0, 2.5, 3.5, ">= 2"), page.Line("slower", 1.0, 1.0, 1.0, ">= 2")]


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [
        (20.0, ">= 20", True),
        (19.99, ">= 20", False),
        (1.25, "< 1.25", False),
        (1.2, "<= 1.2", True),
        (0, "0", True),
        (1, "0", False),
        (7.0, "none", True),
    ],
)
def test_a_target_is_met_or_missed(value: float, target: str, expected: bool) -> None:
    assert is_met(value, target) is expected


def test_every_target_in_the_programs_can_be_parsed() -> None:
    """An unreadable target would be noticed only after minutes of measuring."""
    found = set()
    for file in (ROOT / "bench").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("line", "show"):
                target = node.args[2]
                if isinstance(target, ast.Constant) and is_met(1.0, str(target.value)) is not None:
                    found.add(target.value)
    assert len(found) > 15


def test_the_page_has_marks_and_a_heading_for_every_part() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert not [name for name in (*PARTS, "machine") if text.count(f"<!-- {name} -->") != 1]
    assert [part.title for part in PARTS.values()] == [
        line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")
    ]


def marked(page_file: Path, **tables: str) -> Path:
    page_file.write_text("\n".join(f"<!-- {name} -->\n{text}\n<!-- /{name} -->" for name, text in tables.items()))
    return page_file


def test_a_table_is_written_between_its_marks_and_other_tables_stay(tmp_path: Path) -> None:
    file = marked(tmp_path / "page.md", machine="", core="old", http="kept")
    result = page.Result("core", 0, 60.0, LINES)
    page.write(file, result, tmp_path, MACHINE)
    text = file.read_text()
    assert "| faster | 3.00 | 2.50 to 3.50 | >= 2 | met |\n| slower | 1.00 |  | >= 2 | **missed** |\n<!-- /core" in text
    assert "`make bench ARGS=core`, 60 seconds on " in text
    assert "A processor, 2 cores, 8 GB, Linux; no GPU. python 3.12." in text
    assert "kept" in text
    assert "old" not in text
    assert list(page.summary([result])) == [
        "1 of 2 targets met, in 60 seconds",
        "missed: slower: 1.00, target >= 2",
    ]


def test_the_page_names_the_gpus_of_the_machine(tmp_path: Path) -> None:
    file = marked(tmp_path / "page.md", machine="", core="")
    page.write(file, page.Result("core", 0, 60.0, LINES), tmp_path, replace(MACHINE, gpus=("A100", "A100")))
    assert "Linux; A100, A100. python 3.12." in file.read_text()
    assert "no GPU" not in file.read_text()


def test_a_failed_part_is_marked_on_the_page_and_keeps_its_measured_figures(tmp_path: Path) -> None:
    file = marked(tmp_path / "page.md", machine="", core="old", http="older")
    page.write(file, page.Result("core", 1, 60.0, LINES[:1], ["42 s"], "No space left"), tmp_path, MACHINE)
    page.write(file, page.Result("http", ENDED, 600.0, [], [], "waiting"), tmp_path, MACHINE)
    text = file.read_text()
    assert "**core failed (exit 1): No space left** The table has the figures measured before." in text
    assert "| faster | 3.00 | 2.50 to 3.50 | >= 2 | met |\n\n- 42 s\n<!-- /core -->" in text
    assert "**http exceeded its time limit after 10 minutes: waiting**\n<!-- /http -->" in text
    assert "old" not in text
