"""Pure parts of the client: retry decisions, parsing of lines and events from split bytes, building of requests."""

import argparse
import ast
import json
import tomllib
from pathlib import Path

import pytest
from assay import JobView, Retry, Row, Scores, UnexpectedReply
from assay.cli import parser, scorers
from assay.cli.progress_view import reason_lines
from assay.lines import EventReader, LineReader
from assay.progress_bar import duration, line
from assay.retry import error_of, retry_after_s
from assay.steps import Reply
from assay.submission import score_spec, submit_call
from hypothesis import given
from hypothesis import strategies as some

from tests.conftest import ROOT

PACKAGE = ROOT / "client/src/assay"


def test_retry_delays_grow_exponentially_up_to_a_cap_and_then_give_up() -> None:
    retry = Retry(give_up_after_s=60, first_delay_s=1, max_delay_s=8)
    assert [retry.delay_s(attempt, 0, None, 0.999999) for attempt in (0, 1, 2, 3, 50)] == pytest.approx([1, 2, 4, 8, 8])
    assert retry.delay_s(0, 0, None, 0.0) == 0.5, "jitter spreads the retries of clients that failed at the same moment"
    assert retry.delay_s(0, 0, 30.0, 0.5) == 30, "Retry-After has precedence over the backoff"
    assert retry.delay_s(0, 59.9, None, 0.5) is None
    assert retry.delay_s(0, 0, 61.0, 0.5) is None, "a retry after the time limit is not attempted"


def test_retry_after_is_parsed_as_seconds_or_as_a_date() -> None:
    assert retry_after_s(Reply(503, {"retry-after": "7"})) == 7
    assert retry_after_s(Reply(503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"})) == 0
    assert retry_after_s(Reply(503, {"retry-after": "soon"})) is None


def test_an_error_response_without_json_keeps_its_status() -> None:
    error = error_of(Reply(502, {"content-type": "text/html"}, b"<h1>Bad gateway</h1>"))
    assert str(error) == "The server cannot answer now. [HTTP 502]"
    error = error_of(Reply(422, {"content-type": "application/problem+json"}, b'{"detail": "no", "field": "spec.a"}'))
    assert str(error) == "no (field spec.a) [HTTP 422]"


@given(some.lists(some.binary().filter(lambda text: b"\n" not in text and b"\r" not in text)), some.data())
def test_lines_do_not_depend_on_how_the_bytes_are_split(lines: list[bytes], data: some.DataObject) -> None:
    whole = b"".join(each + b"\n" for each in lines) + b"half"
    reader, read = LineReader(), []
    while whole:
        size = data.draw(some.integers(1, len(whole)))
        read += list(reader.feed(whole[:size]))
        whole = whole[size:]
    assert read == lines
    assert reader.rest == b"half"


def test_complete_events_are_parsed_and_pings_and_incomplete_events_are_skipped() -> None:
    reader = EventReader()
    text = b': ping\n\nid: 4\nevent: progress\ndata: {"ok": 1,\ndata: "failed": 2}\n\nevent: done\nda'
    (event,) = reader.feed(text)
    assert (event.id, event.name, event.data) == ("4", "progress", {"ok": 1, "failed": 2})
    (event,) = reader.feed(b"ta: nonsense\n\n")
    assert (event.name, event.data) == ("done", {})


def test_unknown_fields_are_ignored_and_nulls_become_defaults() -> None:
    view = JobView.from_json({"id": "a", "state": "running", "total": None, "reason": None, "mood": "good"})
    assert (view.total, view.reason, view.raw["mood"]) == (None, "", "good")
    row = Row.from_json({"index": 3, "parts": None, "error": {"type": "x", "hint": 1}, "mood": "good"})
    assert row.error is not None
    assert (row.parts, row.error.type, row.valid) == ({}, "x", False)
    for nonsense in ({}, [], "text", None):
        with pytest.raises(UnexpectedReply):
            JobView.from_json(nonsense)


def test_a_failed_item_has_no_score_unless_a_fill_is_requested() -> None:
    scores = Scores.of([Row(0, score=0.5, valid=True), Row(1)])
    assert (scores.values, scores.valid) == ([0.5, None], [True, False])
    assert scores.filled(0.0) == [0.5, 0.0]


def test_a_short_list_is_sent_as_json_and_a_long_list_is_streamed() -> None:
    with submit_call("score", [{"id": "ä"}], score_spec("a"), {"priority": "bulk", "wait_s": 5}) as call:
        assert call.body is not None
        content = b"".join(call.body.open())
        expected = {"kind": "score", "spec": {"scorers": [{"name": "a"}]}, "priority": "bulk", "items": [{"id": "ä"}]}
        assert json.loads(content) == expected
        assert int(call.headers["Content-Length"]) == len(content)
        assert call.params == {"wait": "5"}
    for many in ([{"n": n} for n in range(5_001)], [{"text": "x" * 1_000_000}] * 9):
        with submit_call("score", many, None, {}) as call:
            assert call.headers["Content-Type"] == "application/x-ndjson"


def test_values_that_json_cannot_hold_and_unknown_options_are_rejected() -> None:
    with (
        pytest.raises(ValueError, match="Item 1 cannot be sent"),
        submit_call("score", [{}, {"x": float("nan")}], None, {}),
    ):
        pass
    with pytest.raises(ValueError, match="Item 0 cannot be sent"), submit_call("score", iter([{"x": {1}}]), None, {}):
        pass
    with pytest.raises(TypeError, match="unknown options: prioriti"), submit_call("score", [{}], None, {"prioriti": 1}):  # type: ignore[typeddict-unknown-key]
        pass


def test_a_scorer_is_parsed_from_the_command_line() -> None:
    assert scorers.parse("numeric_match") == {"name": "numeric_match"}
    assert scorers.parse("f:tags=a,b:strict=true:weight=2:word=x") == {
        "name": "f",
        "weight": 2,
        "options": {"tags": ["a", "b"], "strict": True, "word": "x"},
    }
    assert scorers.parse('{"name": "f", "options": {"a": ":"}}') == {"name": "f", "options": {"a": ":"}}


@pytest.mark.parametrize("width", [10, 20, 80, 300])
def test_progress_fits_the_terminal(width: int) -> None:
    view = JobView("job", state="running", total=200, ok=90, failed=10, rate=12.5, eta_s=8000)
    assert len(line(view, width)) < width
    assert "2 h 13 min" in line(view, 300)
    assert duration(3.21) == "3.2 s"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_parses_with_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))


def test_httpx_is_the_only_dependency_and_python_3_9_is_supported() -> None:
    project = tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]
    assert [each.split(">")[0] for each in project["dependencies"]] == ["httpx"]
    assert project["requires-python"] == ">=3.9"


def test_every_command_and_option_is_documented() -> None:
    page = (ROOT / "docs/client.md").read_text() + (ROOT / "docs/inference.md").read_text()
    commands = next(action for action in parser.build()._actions if action.dest == "command")
    assert commands.choices
    for name, command in dict(commands.choices).items():
        assert f"`assay {name}" in page, name
        listed = [action for action in command._actions if action.help != argparse.SUPPRESS]
        flags = [flag for action in listed for flag in action.option_strings if flag not in ("-h", "--help")]
        assert not [flag for flag in flags if f"`{flag}" not in page], name


def test_events_update_the_job_view() -> None:
    view = JobView("j", state="running", total=10)
    assert view.after("paused", {}).paused
    assert not view.after("paused", {}).after("resumed", {}).paused
    assert view.after("finishing", {"ok": 10}).state == "finishing"
    seen = view.after("progress", {"ok": 4, "failed": 1, "rate": 2.5, "eta_s": 2.0, "reasons": {"no_verdict": 1}})
    assert (seen.settled, seen.rate, seen.eta_s, seen.reasons) == (5, 2.5, 2.0, {"no_verdict": 1})
    assert seen.after("progress", {"ok": 5}).rate == 2.5, "fields that are missing in an event stay unchanged"


def test_failure_reasons_are_sorted_by_frequency_and_fit_the_available_lines() -> None:
    view = JobView("j", reasons={"a": 1, "b": 3, "c": 2000})
    assert reason_lines(view, 80, 5) == ["  failed: c 2,000", "  failed: b 3", "  failed: a 1"]
    assert reason_lines(view, 80, 2) == ["  failed: c 2,000", "  failed: 4 for 2 other reasons"]
    assert all(len(each) < 12 for each in reason_lines(view, 12, 5))
