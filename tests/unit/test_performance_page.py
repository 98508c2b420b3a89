"""The tables of docs/performance.md: what counts as met, and that no part of `make bench` is left out."""

from pathlib import Path

import pytest

from bench import page
from bench.__main__ import PARTS
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [(20.0, ">= 20", True), (19.99, ">= 20", False), (1.25, "< 1.25", False), (1.2, "<= 1.2", True), (0, "0", True),
     (1, "0", False)],
)  # fmt: skip
def test_a_target_is_met_or_missed(value: float, target: str, expected: bool) -> None:
    assert page.Line("a figure", value, target).is_met is expected


def test_the_page_has_a_place_for_every_part() -> None:
    text = (ROOT / "docs/performance.md").read_text()
    assert not [name for name in (*PARTS, "machine") if text.count(f"<!-- {name} -->") != 1]


def test_a_table_is_written_between_its_marks_and_what_was_not_measured_stays(tmp_path: Path) -> None:
    there = tmp_path / "page.md"
    marked = {"machine": "", "core": "old", "http": "kept"}
    there.write_text("\n".join(f"<!-- {name} -->\n{text}\n<!-- /{name} -->" for name, text in marked.items()))
    lines = [page.Line("faster", 3.0, ">= 2"), page.Line("slower", 1.0, ">= 2")]
    part = page.Part("core", "The job core", 0, 60.0, lines)
    page.write(there, [part], tmp_path)
    text = there.read_text()
    assert "| faster | 3.00 | >= 2 |  |\n| slower | 1.00 | >= 2 | **missed** |\n<!-- /core -->" in text
    assert "kept" in text
    assert "old" not in text
    assert "missed: slower: 1.00, target >= 2" in list(page.summary([part]))
