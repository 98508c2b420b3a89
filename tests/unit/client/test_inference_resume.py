"""Resuming from a partial output file: by its contents, in any state, without holding its rows in memory."""

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from assay.inference.output import OutputFile, divide, rewrite
from assay.inference.resume import Comparison, ResumeIndex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Row = dict[str, Any]


def contexts(number: int) -> list[Row]:
    return [
        {
            "id": f"item_{n}",
            "original_item_id": n // 2,
            "query_index": n % 2,
            "query": f"q{n}",
            "context": "c",
            "extra": n,
        }
        for n in range(number)
    ]


def answered(row: Row, by: str = "old") -> Row:
    kept = {name: value for name, value in row.items() if name != "context"}
    return kept | {"answer": f"{by} {row.get('query')}", "worker_rank": 0, "success": True}


def failed(row: Row) -> Row:
    keys = ("id", "original_item_id", "query_index", "dedup_key")
    return {name: row[name] for name in keys if name in row} | {"error": "Inference error: x", "success": False}


def text(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def go_on(folder: Path, wanted: str, output: str | bytes, most: int | None = None) -> tuple[Comparison, list[str], str]:
    """Resume a run. Return the comparison, the lines that were sent, and the output after the missing rows ran."""
    given, out = folder / "contexts.jsonl", folder / "output.jsonl"
    given.write_text(wanted)
    out.write_bytes(output.encode() if isinstance(output, str) else output)
    resume = ResumeIndex()
    found = resume.compare(str(given), str(out), most)
    sent = b"".join(resume.unanswered(str(given))).decode().split("\n")[:-1]
    with OutputFile.opened(str(out)) as file:
        file.begin(found.good_bytes, found.lacks_end)
        for place, line in enumerate(line for line in sent if line):
            resume.add_row(place, file.append(json.dumps(answered(json.loads(line), "new")).encode()))
        if not resume.is_in_order(file.finish()):
            rewrite(str(out), resume.in_order())
    resume.close()
    return found, sent, out.read_text()


def test_a_partial_output_is_resumed_and_its_truncated_line_is_dropped(tmp_path: Path) -> None:
    rows = contexts(6)
    half = text(answered(row) for row in rows[:3]) + json.dumps(answered(rows[3]))[:-9]
    found, sent, output = go_on(tmp_path, text(rows), half)
    assert (found.kept, found.missing, found.is_cut) == (3, 3, True)
    assert sent == ["", "", "", *(json.dumps(row) for row in rows[3:])], "the line numbers stay correct"
    assert output == text([*map(answered, rows[:3]), *(answered(row, "new") for row in rows[3:])])


def test_a_last_line_without_a_line_end_is_complete(tmp_path: Path) -> None:
    rows = contexts(3)
    found, _, output = go_on(tmp_path, text(rows), text(map(answered, rows[:2]))[:-1])
    assert (found.kept, found.is_cut) == (2, False)
    assert output == text([*map(answered, rows[:2]), answered(rows[2], "new")])
    found, _, output = go_on(tmp_path, text(rows), text(map(answered, rows))[:-1])
    assert (found.missing, output) == (0, text(map(answered, rows)))


def test_failed_rows_run_again_and_answered_rows_are_kept_byte_for_byte(tmp_path: Path) -> None:
    rows = contexts(4)
    odd = '{"id":"item_2",   "original_item_id":1,"query_index":0,"query":"q2","answer":"\\u0061","success":true}\r\n'
    found, _, output = go_on(tmp_path, text(rows), text([answered(rows[0]), failed(rows[1])]) + odd)
    assert (found.kept, found.failed, found.missing) == (2, 1, 2)
    lines = output.splitlines(keepends=True)
    assert json.loads(lines[1]) == answered(rows[1], "new")
    assert (tmp_path / "output.jsonl").read_bytes().splitlines(keepends=True)[2] == odd.encode()
    assert [json.loads(line)["id"] for line in lines] == [row["id"] for row in rows]


def test_wrong_order_duplicates_and_rows_of_other_inputs_are_corrected(tmp_path: Path) -> None:
    rows = contexts(5)
    strange = {"id": "other", "original_item_id": 99, "query_index": 0, "query": "?", "answer": "!", "success": True}
    messy = [answered(rows[3]), strange, answered(rows[1]), answered(rows[3], "again"), failed(rows[0])]
    found, _, output = go_on(tmp_path, text(rows), "not a row\n[1]\n\n" + text(messy))
    assert (found.kept, found.failed, found.foreign, found.unreadable) == (2, 1, 2, 2)
    by = ["new", "old", "new", "old", "new"]
    assert output == text(answered(row, who) for row, who in zip(rows, by, strict=True))


def test_a_row_with_a_changed_question_runs_again(tmp_path: Path) -> None:
    rows = contexts(2)
    found, _, output = go_on(tmp_path, text(rows), text([answered(rows[0] | {"query": "another"}), answered(rows[1])]))
    assert (found.kept, found.foreign) == (1, 1)
    assert output == text([answered(rows[0], "new"), answered(rows[1])])


@pytest.mark.parametrize("answer", ["", "  \n", None])
def test_an_empty_answer_counts_as_failed(tmp_path: Path, answer: str | None) -> None:
    rows = contexts(2)
    found, _, output = go_on(tmp_path, text(rows), text([answered(rows[0]) | {"answer": answer}, answered(rows[1])]))
    assert found.failed == 1
    assert output == text([answered(rows[0], "new"), answered(rows[1])])


def test_rows_with_the_same_key_are_matched_by_position(tmp_path: Path) -> None:
    twins = [{"id": "a", "query": "q", "extra": n} for n in range(4)]
    found, sent, output = go_on(tmp_path, text(twins), text([failed(twins[0]), answered(twins[1]), answered(twins[2])]))
    assert (found.kept, found.failed) == (2, 2)
    assert [line for line in sent if line] == [json.dumps(twins[0]), json.dumps(twins[3])]
    assert [json.loads(line)["extra"] for line in output.splitlines()] == [0, 1, 2, 3]


def test_rows_without_an_id_are_matched_by_question_and_other_rows_run(tmp_path: Path) -> None:
    rows = [{"query": "a"}, {"messages": [{"role": "user", "content": "b"}]}, {"query": "c"}]
    done = [answered(rows[0]), {"answer": "x", "success": True}, answered(rows[2])]
    found, sent, _ = go_on(tmp_path, text(rows), text(done))
    assert (found.kept, sent) == (2, ["", json.dumps(rows[1])])


def test_a_row_limit_applies_to_the_first_rows_of_the_input(tmp_path: Path) -> None:
    rows = contexts(10)
    found, sent, output = go_on(tmp_path, text(rows), text([answered(rows[1]), answered(rows[7])]), most=4)
    assert (found.wanted, found.kept, found.missing, found.foreign) == (4, 1, 3, 1)
    assert len(sent) == 4
    assert [json.loads(line)["id"] for line in output.splitlines()] == [row["id"] for row in rows[:4]]


def test_blank_lines_byte_order_marks_and_crlf_are_accepted(tmp_path: Path) -> None:
    rows = contexts(3)
    wanted = "\ufeff" + json.dumps(rows[0]) + "\r\n\r\n" + json.dumps(rows[1]) + "\r\n" + json.dumps(rows[2])
    found, sent, _ = go_on(tmp_path, wanted, text([answered(rows[0])]))
    assert (found.wanted, found.kept) == (3, 1)
    assert [line.strip() for line in sent] == ["", "", json.dumps(rows[1]), json.dumps(rows[2])]


def test_an_invalid_line_is_sent_so_that_the_server_reports_it(tmp_path: Path) -> None:
    rows = contexts(2)
    given, out = tmp_path / "contexts.jsonl", tmp_path / "none.jsonl"
    given.write_bytes(text(rows[:1]).encode() + b'{"query": "caf\xe9"}\n' + text(rows[1:]).encode())
    resume = ResumeIndex()
    assert resume.compare(str(given), str(out), None).missing == 3
    assert b"".join(resume.unanswered(str(given))) == given.read_bytes()
    resume.close()


KEYS = st.integers(0, 3)
INPUT = st.lists(st.tuples(KEYS, st.integers(0, 1)), min_size=1, max_size=12)
OUTPUT = st.lists(st.tuples(KEYS, st.integers(0, 2), st.sampled_from(["ok", "failed", "broken", "blank"])), max_size=15)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60, deadline=None
)
@given(INPUT, OUTPUT, st.integers(0, 40))
def test_after_any_output_every_row_is_written_once_and_in_order(
    tmp_path: Path, wanted: list[tuple[int, int]], old: list[tuple[int, int, str]], cut: int
) -> None:
    rows = [{"id": key, "query": f"q{question}"} for key, question in wanted]
    lines = []
    for n, (key, question, state) in enumerate(old):
        row = {"id": key, "query": f"q{question}"}
        made = {
            "ok": json.dumps(answered(row, f"old{n}")),
            "failed": json.dumps(failed(row)),
            "broken": "{",
            "blank": "",
        }
        lines.append(made[state] + "\n")
    before = "".join(lines)
    before = before[: len(before) - cut]
    _, _, output = go_on(tmp_path, text(rows), before)
    told = [json.loads(line) for line in output.splitlines()]
    assert [(row["id"], row["query"]) for row in told] == [(row["id"], row["query"]) for row in rows]
    kept = [line for line in output.splitlines() if '"old' in line]
    there = [line for line in before.splitlines() if '"old' in line and line.endswith("}")]
    assert Counter(kept) <= Counter(there), "rows are kept byte for byte, and only once"
    usable = Counter((row["id"], row["query"]) for row in map(json.loads, there))
    asked = Counter((row["id"], row["query"]) for row in rows)
    assert len(kept) == (usable & asked).total(), "every usable row is kept"


def test_memory_does_not_grow_with_the_number_of_rows(tmp_path: Path) -> None:
    given, out = tmp_path / "contexts.jsonl", tmp_path / "output.jsonl"
    with given.open("w") as wanted, out.open("w") as done:
        for n in range(6_000):
            row = {"id": n, "query": f"question {n}", "context": "x" * 300}
            wanted.write(json.dumps(row) + "\n")
            if n % 3:
                done.write(json.dumps(answered(row)) + "\n")
    resume = ResumeIndex()
    tracemalloc.start()
    found = resume.compare(str(given), str(out), None)
    sent = sum(len(line) > 1 for line in resume.unanswered(str(given)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    resume.close()
    assert (found.kept, sent) == (4_000, 2_000)
    assert peak < 500_000


def test_a_second_run_cannot_open_the_same_output(tmp_path: Path) -> None:
    path = str(tmp_path / "output.jsonl")
    with OutputFile.opened(path), pytest.raises(ValueError, match="another run"), OutputFile.opened(path):
        pass


def test_the_output_is_unchanged_until_the_first_write(tmp_path: Path) -> None:
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    old.write_text("of an earlier night\n")
    for path in (new, old):
        with pytest.raises(RuntimeError), OutputFile.opened(str(path)):
            raise RuntimeError("the server refused")
    assert not new.exists()
    assert old.read_text() == "of an earlier night\n"


def test_the_output_is_split_into_a_file_per_worker(tmp_path: Path) -> None:
    out = tmp_path / "output.jsonl"
    out.write_text(text({"id": n, "worker_rank": rank} for n, rank in enumerate([0, 1, None, 0, 11])))
    files = divide(str(out))
    assert {rank: Path(path).name for rank, path in files.items()} == {
        0: "output_rank0.jsonl",
        1: "output_rank1.jsonl",
        11: "output_rank11.jsonl",
    }
    assert [json.loads(line)["id"] for line in Path(files[0]).read_text().splitlines()] == [0, 3]
    assert not list(tmp_path.glob("*.part"))
