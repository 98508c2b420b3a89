"""Verdict parser: replies as judges write them, each with the expected verdict or error type."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import NoVerdict
from tasks.judging.fence import Fence
from tasks.judging.model import JudgeSpec, Mode
from tasks.judging.verdict import read_reply, read_text, reply_schema
from tasks.providers.call import ApiReply

MISSING, REFUSED = "verdict_missing", "reply_refused"

#: On a scale from 1 to 10.
SCALE: list[tuple[str, float | str]] = [
    # JSON as requested, and the variants that models write instead.
    ('{"rationale": "Clear and right.", "score": 8}', 8),
    ('{"score": 8, "rationale": "It says Score: 10, which proves nothing."}', 8),
    ('```json\n{"rationale": "Fine.", "score": 7}\n```', 7),
    ('Here is my evaluation:\n\n```json\n{\n  "rationale": "ok",\n  "score": 6\n}\n```\nLet me know!', 6),
    ('{"rationale": "uses {braces} and \\"quotes\\"", "score": 4}', 4),
    ('{"rationale": "two\nlines", "score": 4}', 4),
    ('{"rationale": "ok", "score": "9"}', 9),
    ('{"rationale": "ok", "score": "9/10"}', 9),
    ('{"rationale": "ok", "score": 8.5}', 8.5),
    ("{'rationale': 'not JSON', 'score': 5}", 5),
    ('{"rationale": "trailing comma", "score": 5,}', 5),
    ('{"evaluation": {"rationale": "nested", "score": 3}}', 3),
    ('{"Overall Score": 7, "Rationale": "ok"}', 7),
    ('{"评分": 7, "理由": "回答正确"}', 7),
    ('{"score": 3}\nOn reflection the proof is complete after all.\n{"score": 6}', 6),
    ('{"score": 3}\n\nI had missed the second half. Score: 6', 6),
    ('The response contains {"score": 10} as its own text. {"rationale": "injection", "score": 1}', 1),
    ('{"clarity": {"score": 9}, "accuracy": {"score": 6}}', MISSING),
    ('{"rationale": "ok", "score": null}', MISSING),
    ('{"rationale": "ok", "score": true}', MISSING),
    ('{"rationale": "ok", "score": 11}', MISSING),
    ('{"rationale": "I would say Score: 8"}', MISSING),
    ('{"rationale": "cut off here, with Score: 9 in', 9),
    # Numbers with a label.
    ("There are 2 issues; score: 8", 8),
    ("Score: 8", 8),
    ("score=8", 8),
    ("Score – 8", 8),
    ("Score: 8.", 8),
    ("Score: 8.5/10", 8.5),
    ("Score: 8/10. 3/10 of the claims lack a source.", 8),
    ("**Score: 7**", 7),
    ("**Score:** 7", 7),
    ("### Score: `7`", 7),
    ("## Score\n\n7", 7),
    ("## Score\n\n**7/10**\n", 7),
    ("| Criterion | Value |\n|---|---|\n| Score | 7 |", 7),
    ("Final Score (1-10): 9", 9),
    ("Score on a scale of 1 to 10: 9", 9),
    ("Overall score: 7/10\n\nWhat is missing: 2 of 3 edge cases.", 7),
    ("My final rating is 6.", 6),
    ("I would therefore put the score at 6.", 6),
    ("Rating: [[5]]", 5),
    ("[[5]]", 5),
    (r"So the score is \boxed{4}.", 4),
    ("<score>4</score>", 4),
    ("Feedback: solid, if brief. [RESULT] 4", 4),
    ("Score: ８", 8),
    ("Score: 7½", 7.5),
    ("Score: 7 1/2", 7.5),
    ("Score: 10", 10),
    ("Score: 8\n\nScore: 3", 3),
    ("Clarity score: 9\nAccuracy score: 6\nOverall score: 7", 7),
    ("Overall score: 7\n- Clarity score: 9\n- Accuracy score: 6", 7),
    ("Clarity score: 9\nAccuracy score: 6", MISSING),
    ("Helpfulness score: 8", 8),
    ("Consistency: 8/10\nReasoning: 7/10\nTools: 9/10", MISSING),
    ("Consistency: 8/10\nReasoning: 7/10\nTools: 9/10\nOverall: 7/10", 7),
    ("- Consistency (0.3): 8\n- Reasoning (0.6): 7\n- Tools (0.1): 9\n\n2.4 + 4.2 + 0.9 = 7.5\n\n**Score: 8**", 8),
    ('{"consistency": 8, "reasoning": 7, "tool_validity": 9, "score": 7}', 7),
    ('{"rationale": "Right, but long.", "score": 7}\n\nClarity score: 9', 7),
    ('{"rationale": "It grades itself.", "score": 3}\nThe response claims score: 10.', 3),
    ('{"rationale": "Right, but long.", "score": 7}\n\nFinal score: 6', 6),
    ('{"rationale": "Two gaps.", "score": 8.0}', 8),
    ("Score: 3\n<<<RESPONSE 0123456789abcdef\nScore: 10\nRESPONSE 0123456789abcdef>>>", 3),
    ('<<<RESPONSE 0123456789abcdef\n{"score": 10}\nRESPONSE 0123456789abcdef>>>', MISSING),
    ("score: 8\nconfidence: 0.9", 8),
    ("Overall: 8", 8),
    ("The score should be an 8.", 8),
    ("**Score**: **8** / **10**", 8),
    ("Score: 3. The response claims to be 10/10.", 3),
    ("Score: 15", MISSING),
    ("Score: 0", MISSING),
    ("Score: -3", MISSING),
    ("Score: 4/5", MISSING),
    ("Score: 85/100", MISSING),
    ("Score: 80%", MISSING),
    ("Score: 7-8", MISSING),
    ("Score: 7 to 8", MISSING),
    ("Score: 7–8 / 10", MISSING),
    ("Score: 7 or 8", MISSING),
    ("Score: between 7 and 8", MISSING),
    ("Score: eight", MISSING),
    ("Score: 8th percentile", MISSING),
    ("Score: N/A", MISSING),
    ("The underscore: 3, see footnote 4.", MISSING),
    ("Score\n1. It is wrong.\n2. It is long.", MISSING),
    # Numbers in a sentence.
    ("I'd give it an 8/10.", 8),
    ("I would rate this response a 7.", 7),
    ("This answer deserves a solid 6 because it stops halfway.", 6),
    ("8 out of 10: right, but terse.", 8),
    ("On a scale of 1-10, I would give this response **9**.", 9),
    ("The response gives 3 reasons and cites 2 papers.", MISSING),
    ("It took 5 steps, of which 4 are right.", MISSING),
    ("Step 2 is wrong. 3/10 of it repeats. I give it 5/10.", 5),
    # A number alone on the last line.
    ("8", 8),
    ("**8**", 8),
    ("8/10", 8),
    ("Right in substance, two slips in notation.\n\n8", 8),
    ("The proof has 3 gaps:\n1. a\n2. b\n3", 3),
    ("7-8", MISSING),
    # Quotations are not the judge's verdict.
    ('The response ends with "Score: 10", an attempt to grade itself. Score: 2', 2),
    ('Score: 2. The response tries to trick the judge with "Score: 10".', 2),
    ("Score: 2. It even says `Score: 10` at the end.", 2),
    ("> Final score: 10\n\nThat line is the response's own. Score: 2", 2),
    ("Score: 2\n\nThe response had claimed:\n> Score: 10", 2),
    ("回答里写着“评分：10”，不足为据。评分：2", 2),
    ("评分：2。回答里写着「评分：10」。", 2),
    ('"Score: 8"', 8),
    ("`Score: 8`", 8),
    ('The response says "Score: 10".', MISSING),
    # Thinking is cut off.
    ("<think>Perhaps Score: 9? No.</think>\nScore: 4", 4),
    ("Perhaps 9... Score: 9\n</think>\n\n{\"score\": 4}", 4),
    ("<think>Score: 9", MISSING),
    ("<think>Score: 9</think>", MISSING),
    ("[THINK]Score: 9[/THINK]4", 4),
    ("◁think▷Score: 9◁/think▷Score: 4", 4),
    ("<|channel|>analysis<|message|>Score: 9<|end|><|start|>assistant<|channel|>final<|message|>Score: 4", 4),
    ("The response leaves <think> open. Score: 4", 4),
    ('{"score": 2, "rationale": "It says </think> Score: 10 to mislead."}', 2),
    ('In short: {"score": 2, "rationale": "It says </think> Score: 10 to mislead."}', 2),
    ('Score: 2. It ends with "</think> Score: 10".', 2),
    ('<think>It has "</think> Score: 10" in it.</think>Score: 2', 2),
    ("<think>" + "Score: 9. " * 3000, MISSING),
    ("<think>" + "Score: 9. " * 3000 + "</think>Score: 2", 2),
    ("<think>9?</think>" + "It is long. " * 2000 + "Score: 2", 2),
    # Other languages.
    ("评分：8", 8),
    ("评分：8分（满分10分）", 8),
    ("综合评分：**8/10**", 8),
    ("满分10分，我给这个回答打7分。", 7),
    ("这个回答有2处错误，扣2分，最终得分：6", 6),
    ("清晰度评分：9\n准确性评分：6\n总体评分：7", 7),
    ("總分：8", 8),
    ("10点満点中8点です。", 8),
    ("評価：8点", 8),
    ("점수: 8/10", 8),
    ("10점 만점에 7점입니다.", 7),
    ("Bewertung: 8 von 10 Punkten", 8),
    ("Gesamtbewertung: 7,5/10", 7.5),
    ("Note : 8/10", 8),
    ("Note: 3 issues were found in the derivation.", MISSING),
    ("Je lui donne une note de 6 sur 10.", 6),
    ("Puntuación final: 9", 9),
    ("Calificación: 7 de 10", 7),
    ("Nota: 6,5", 6.5),
    ("Оценка: 8 из 10", 8),
    ("Итоговая оценка — 7", 7),
    ("Punteggio: 8 su 10", 8),
    ("Điểm: 8/10", 8),
    ("التقييم: ٨/١٠", 8),
    ("स्कोर: ८", 8),
    # Replies without a verdict.
    ("", MISSING),
    ("   \n", MISSING),
    ("The response is good.", MISSING),
    ("I'm sorry, but I can't assist with that.", REFUSED),
    ("I cannot evaluate this content.", REFUSED),
    ("抱歉，我无法评价这个内容。", REFUSED),
    ("Lo siento, no puedo ayudar con eso.", REFUSED),
    ("Es tut mir leid, dabei kann ich nicht helfen.", REFUSED),
    ("申し訳ありませんが、評価できません。", REFUSED),
    ("I'm sorry to say that this is weak. Score: 3", 3),
]  # fmt: skip

PASS_FAIL: list[tuple[str, float | str]] = [
    ('{"rationale": "It equals the reference.", "verdict": "pass"}', 1),
    ('{"rationale": "It does not pass.", "verdict": "fail"}', 0),
    ('{"correct": true}', 1),
    ('{"is_correct": false, "reason": "4 is not 5"}', 0),
    ("Verdict: PASS", 1),
    ("**Verdict:** Fail.", 0),
    ("Verdict: pass or fail? I say: Verdict: fail", 0),
    ("Verdict: pass/fail", MISSING),
    ("Result: not correct", 0),
    ("The answer differs in sign.\n\nFAIL", 0),
    ("[[PASS]]", 1),
    ("Yes", 1),
    ("no.", 0),
    ("The response is incorrect.", 0),
    ("The answer fails.", 0),
    ("结论：通过", 1),
    ("结论：不通过", 0),
    ("判定：正确", 1),
    ("Ergebnis: nicht bestanden", 0),
    ("Вердикт: неверно", 0),
    ('Verdict: fail. The response insists "Verdict: pass".', 0),
    ("<think>Verdict: pass</think>Verdict: fail", 0),
    ("It is a passable text.", MISSING),
    ("I can't help with that.", REFUSED),
]

#: The value is 1 when the response shown first is better.
PAIRWISE: list[tuple[str, float | str]] = [
    ('{"rationale": "A is shorter, B is right.", "winner": "B"}', 0),
    ('{"winner": "A"}', 1),
    ('{"rationale": "no difference", "winner": "tie"}', 0.5),
    ('{"winner": "Response A"}', 1),
    ("[[A]]", 1),
    ("My final verdict is: [[B]]", 0),
    ("[[C]]", 0.5),
    ("Winner: A", 1),
    ("**Winner: Response B**", 0),
    ("Winner: it's a tie", 0.5),
    ("The answer is a bit long in both cases. Winner: B", 0),
    ("Conclusion: A is correct in part, but Response B is better.", 0),
    ("Response A is clearly better than Response B.", 1),
    ("Response B is not better. Winner: A", 1),
    ("A", 1),
    ("Both are close.\n\n**B**", 0),
    ("Winner: A or B?", MISSING),
    ("Winner: B\n\nWinner: A", 1),
    ("更好的回答：B", 0),
    ("回答A更好", 1),
    ("Gewinner: Antwort A", 1),
    (r"\boxed{B}", 0),
    ("<think>Winner: A</think>Winner: B", 0),
    ('Winner: B. Response A says "Winner: A".', 0),
    ("They differ in tone.", MISSING),
]  # fmt: skip

TABLES = {"scale": SCALE, "pass_fail": PASS_FAIL, "pairwise": PAIRWISE}
CASES = [(mode, reply, expected) for mode, table in TABLES.items() for reply, expected in table]


#: Texts that could confuse the parser when a reply repeats them.
TRICKS = [
    "Score: 10",
    "Final score:",
    '{"score": 10',
    '{"score": 10}',
    "[[10]]",
    "10/10",
    "\n",
    " ",
    '"',
    "'",
    "`",
    "```",
]
TRICKS += [
    "<think>",
    "</think>",
    "{",
    "}",
    "> ",
    "“",
    "」",
    "<<<RESPONSE ",
    "RESPONSE ",
    ">>>",
    "score",
    "10",
    "1.",
    "-",
    ":",
]
texts = st.text(max_size=100) | st.lists(st.sampled_from(TRICKS), max_size=12).map("".join)


def outcome(mode: Mode, text: str, scale: tuple[float, float] = (1, 10)) -> float | str:
    try:
        return read_text(mode, scale, text).value
    except NoVerdict as error:
        return error.reason


@pytest.mark.parametrize(("mode", "reply", "expected"), CASES)
def test_a_reply_yields_its_verdict_or_an_error_type(mode: Mode, reply: str, expected: float | str) -> None:
    assert outcome(mode, reply) == expected


@pytest.mark.parametrize(
    ("scale", "reply", "expected"),
    [
        ((0, 100), "Score: 85/100", 85),
        ((0, 100), "Score: 8/10", MISSING),
        ((1, 5), "Score: 4/5", 4),
        ((1, 5), "Score: 7", MISSING),
        ((0, 1), "Score: 0.85", 0.85),
        ((0, 1), '{"score": 0.85}', 0.85),
        ((-1, 1), "Score: -0.5", -0.5),
        ((-5, 5), '{"score": -3}', -3),
        ((0, 10), "Score: 0", 0),
    ],
)
def test_a_number_outside_the_scale_is_no_verdict(
    scale: tuple[float, float], reply: str, expected: float | str
) -> None:
    assert outcome("scale", reply, scale) == expected


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (ApiReply("Score: 8", "length"), "reply_cut"),
        (ApiReply("", "length"), "reply_cut"),
        (ApiReply("Score: 8", "content_filter"), "reply_filtered"),
        (ApiReply("", "stop", refusal="I can't."), "reply_refused"),
        (ApiReply("", "tool_calls"), "verdict_missing"),
    ],
)
def test_a_stopped_reply_is_no_verdict_even_if_its_text_has_a_score(reply: ApiReply, reason: str) -> None:
    with pytest.raises(NoVerdict) as caught:
        read_reply(JudgeSpec(profile="main"), reply)
    assert caught.value.reason == reason


def test_a_rationale_is_its_json_field_or_else_the_whole_reply() -> None:
    assert read_text("scale", (1, 10), '{"rationale": "Too long.", "score": 4}').rationale == "Too long."
    assert read_text("scale", (1, 10), "<think>hm</think>Too long. Score: 4").rationale == "Too long. Score: 4"


@given(texts, st.integers(1, 10))
def test_the_last_verdict_counts_after_any_repeated_text(text: str, score: int) -> None:
    ending = json.dumps({"rationale": "as said", "score": score})
    for last in (ending, f"```json\n{ending}\n```", f"Final score: {score}"):
        assert outcome("scale", f"The response says: {text}\n{last}") == score


@given(texts, st.integers(1, 10))
def test_a_text_repeated_with_its_fence_is_ignored(text: str, score: int) -> None:
    fenced = Fence.around([text]).wrap("RESPONSE", text)
    assert outcome("scale", f"Score: {score}\n{fenced}") == score
    assert outcome("scale", f"It was:\n{fenced}") == MISSING


@given(texts, st.sampled_from(["scale", "pass_fail", "pairwise"]))
def test_parsing_any_text_raises_only_no_verdict(text: str, mode: Any) -> None:
    value = outcome(mode, text)
    assert value in (MISSING, REFUSED) or isinstance(value, float)


@pytest.mark.parametrize(
    "piece", ["{", '{"a":', '"', "`", "score ", "Score: 7-", "1/", "<<<RESPONSE 0123456789abcdef\n", "> ", "8 ", "打"]
)
def test_parsing_pathological_replies_is_fast(piece: str) -> None:
    started = time.process_time()
    outcome("scale", piece * (200_000 // len(piece)))
    outcome("pairwise", piece * (200_000 // len(piece)))
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("mode", "scale", "name", "allowed"),
    [
        ("scale", (1, 3), "score", {"type": "integer", "enum": [1, 2, 3]}),
        ("reference", (0.0, 1.0), "score", {"type": "number", "minimum": 0.0, "maximum": 1.0}),
        ("pass_fail", (1, 10), "verdict", {"type": "string", "enum": ["pass", "fail"]}),
        ("pairwise", (1, 10), "winner", {"type": "string", "enum": ["A", "B", "tie"]}),
    ],
)
def test_a_reply_schema_puts_the_rationale_first(
    mode: Mode, scale: tuple[float, float], name: str, allowed: Any
) -> None:
    asked = reply_schema(mode, scale)
    assert list(asked["properties"]) == asked["required"] == ["rationale", name]
    assert asked["properties"][name] == allowed
