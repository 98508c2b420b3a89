"""Pure parts of the development API: parsing of prompts, distribution of scores, rate windows, and peaks."""

import contextlib
import json
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.development_api import tokenizer
from workers.development_api.chat_request import Invalid, read_body, read_json
from workers.development_api.counts import peak
from workers.development_api.grading_rule import Judge
from workers.development_api.knobs import Knobs
from workers.development_api.prompt_parser import Form, Question, read_question
from workers.development_api.rate_limits import Window
from workers.development_api.responses import completion, make_choices

MT_BENCH = """[User Question]
How?

[The Start of Assistant A's Answer]
Like this.
[The End of Assistant A's Answer]

[The Start of Assistant B's Answer]
Like that.
[The End of Assistant B's Answer]"""
PROMETHEUS = """###Task Description:
Write a feedback, then an integer score between 1 and 5.
###The instruction to evaluate:
How?

###Response to evaluate:
Like this.

###Reference Answer (Score 5):
Like that.

###Score Rubrics:
[Is it good?]
###Feedback: """


def read(user: str, system: str = "") -> Question:
    return read_question([{"role": "system", "content": system}, {"role": "user", "content": user}])


def test_assays_own_prompts_are_parsed() -> None:
    user = (
        "<<<PROMPT 0123456789abcdef\n2+3?\nPROMPT 0123456789abcdef>>>\n\n"
        '<<<RESPONSE A 0123456789abcdef\nso 5\nAnswer: 7 [[B]] "k": 1\nRESPONSE A 0123456789abcdef>>>\n\n'
        "<<<RESPONSE B 0123456789abcdef\nsix\nRESPONSE B 0123456789abcdef>>>\n\nGive your verdict now."
    )
    system = 'Reply with one JSON object: {"rationale": "your reasons", "winner": "A", "B" or "tie"}'
    form = Form(tie="tie", keys=("rationale", "winner"), wants_object=True)
    assert read(user, system) == Question(('so 5\nAnswer: 7 [[B]] "k": 1', "six"), None, form)


@pytest.mark.parametrize(
    ("user", "responses", "reference"),
    [
        ("<response>\nso 5\n# 6\nAnswer: 7\n</response>\n<reference>5</reference>", ("so 5\n# 6\nAnswer: 7",), "5"),
        ('<answer id="1">x</answer>\n<answer id="2">y</answer>', ("x", "y"), None),
        ("=== RESPONSE A 3fa9 ===\nx\n=== END RESPONSE A 3fa9 ===\n=== RESPONSE B 3fa9 ===\ny", ("x", "y"), None),
        (MT_BENCH, ("Like this.", "Like that."), None),
        (PROMETHEUS, ("Like this.",), "Like that."),
        ("Say hi. Response quality matters.", ("Say hi. Response quality matters.",), None),
    ],
)
def test_prompts_of_other_programs_are_parsed(user: str, responses: tuple[str, ...], reference: str | None) -> None:
    question = read(user)
    assert (question.responses, question.reference) == (responses, reference)


@pytest.mark.parametrize(
    ("told", "form"),
    [
        ("Rate it on a scale from 1 to 5. `Final score: N`", Form(low=1, high=5, label="Final score")),
        ("Give a number between 0 and 1.", Form(low=0, high=1)),
        ("Verdict: PASS or FAIL", Form(label="Verdict", words=("PASS", "FAIL"))),
        ('"[[A]]" if A is better, "[[B]]" if B, "[[C]]" for a tie', Form(tie="C", brackets=True)),
        ('JSON, please: {"reason": "", "grade": 5}', Form(keys=("reason", "grade"), wants_object=True)),
        ("In the years from 2020 to 1990 nothing is a scale", Form()),
    ],
)
def test_the_requested_form_of_the_reply_is_detected(told: str, form: Form) -> None:
    assert read("<response>x</response>", told).form == form


@given(st.lists(st.sampled_from(["<response>", "</response>", "### Answer:", "x", "<<<RESPONSE 12", "\n", "[["])))
def test_any_prompt_is_parsed_without_an_error(parts: list[str]) -> None:
    read("".join(parts))


NAMES = ["type", "properties", "items", "enum", "anyOf", "$ref", "minimum", "content", "role", "text"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.data())
def test_any_body_is_answered_or_refused(data: st.DataObject) -> None:
    names = ["temperature", "seed", "n", "max_tokens", "stop", "logprobs", "top_logprobs", "stream_options", "model"]
    body: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(names), JSON | st.integers(0, 3), max_size=4))
    body["messages"] = data.draw(
        JSON | st.lists(st.dictionaries(st.sampled_from(["role", "content"]), JSON), min_size=1)
    )
    schema = {"name": "x", "schema": data.draw(JSON)}
    body["response_format"] = data.draw(JSON | st.just({"type": "json_schema", "json_schema": schema}))
    raw = json.dumps(body).encode()
    with contextlib.suppress(Invalid):
        asked = read_body(read_json(raw), raw, Knobs())
        completion(asked, "m", make_choices(asked, Knobs(), "ok", 1), "name", 0)


@given(st.text())
def test_tokens_concatenate_to_the_text(text: str) -> None:
    assert "".join(tokenizer.split(text)) == text


def judge(text: str, temperature: float = 0.0, **form: Any) -> Judge:
    return Judge(Question((text,), None, Form(**form)), temperature, random.Random(1))


@given(st.text(), st.integers(-50, 50), st.integers(1, 3000))
def test_a_score_lies_on_its_scale_and_is_the_likeliest_token(text: str, low: int, span: int) -> None:
    word = judge(text).number(low, low + span, whole=True)
    assert low <= int(word.text) <= low + span
    assert word.odds[word.text] == max(word.odds.values())
    assert sum(word.odds.values()) == pytest.approx(1)


def test_drawn_scores_follow_the_distribution() -> None:
    drawn = judge("some text", temperature=1.0)
    words = [drawn.number(1, 10) for _ in range(2000)]
    for word, share in words[0].odds.items():
        assert sum(each.text == word for each in words) / 2000 == pytest.approx(share, abs=0.05)


@given(st.lists(st.floats(0, 10)), st.floats(0.01, 5))
def test_a_peak_is_the_most_in_any_window(times: list[float], window_s: float) -> None:
    times.sort()
    expected = max((sum(end - window_s < time <= end for time in times) for end in times), default=0)
    assert peak(times, window_s) == expected


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), max_size=60), st.integers(1, 12), st.floats(0.1, 3))
def test_no_window_exceeds_its_limit(calls: list[tuple[float, int]], limit: int, window_s: float) -> None:
    window, now_s, let_in = Window(), 0.0, list[tuple[float, int]]()
    for pause_s, amount in calls:
        now_s += pause_s
        wait_s = window.wait_s(now_s, amount, limit, window_s)
        if wait_s == 0:
            window.add(now_s, amount)
            let_in.append((now_s, amount))
        else:
            late = Window()
            for at_s, entry in let_in:
                late.add(at_s, entry)
            assert late.wait_s(now_s + wait_s + 1e-9, amount, limit, window_s) == 0, "it waits no longer than it must"
    for end_s, amount in let_in:
        inside = sum(entry for at_s, entry in let_in if end_s - window_s < at_s <= end_s)
        assert inside <= max(limit, amount)
    assert all(one[0] <= other[0] for one, other in pairwise(let_in))
