"""Reader of verdicts in words, as judges write them: pass or fail, and the better response of a pair."""

import re
from collections.abc import Mapping
from typing import Any

from tasks.judging.json_verdicts import values_of
from tasks.judging.reply_text import FoundVerdict, last_line, without_quotes
from tasks.judging.vocabulary import DECISION, IS, any_of

#: Characters before and after a word in which a label or a marker is searched.
CONTEXT_CHARS = 120

_FLAGS = re.VERBOSE | re.IGNORECASE
_CLOSED = re.compile(r"\s{0,4}(?:\]\]|\}|</)")
_ALTERNATIVE = re.compile(r"[*_`\])\"]{0,4}[ ]?(?:/|\||or|oder|还是|或)[ ]?[*_`\[(\"]{0,4}\w", re.IGNORECASE)
_LETTER_END = re.compile(r"[*_`\])\"”]{0,4}\s*(?:$|[\n.,;:!|(—–-]|because\b|since\b|over\b|by\b)")
_END = re.compile(r"[^\w\n]{0,6}$")


class WordReader:
    """Finds the verdict words of a mode in a reply, and maps them to values."""

    def __init__(self, keys: str, values: Mapping[str, float], subject: str, sentence: str) -> None:
        """`keys`: field names of a JSON verdict; `subject`: pattern of the text allowed between a label and the word;
        `sentence`: pattern of a deciding sentence, with the word in its group `word`."""
        self._keys = frozenset(keys.split())
        self._values = values
        words = any_of(*(each.replace(" ", "_") for each in values))
        self._word = re.compile(rf"(?<![A-Za-z0-9_'’]){words}(?![\w'’])", _FLAGS)
        opened = r"\[\[|\\boxed\{(?:\\text\{)?|<(?:verdict|winner|answer|result)>"
        self._opened = re.compile(rf"(?:{opened})\s{{0,4}}{subject}\Z", _FLAGS)
        gap = rf"[^\w\n]{{0,10}}(?:{IS}(?![A-Za-z]))?[^\w\n]{{0,10}}|[^\w\n]{{0,6}}\n\s{{0,4}}[^\w\n]{{0,6}}"
        self._labelled = re.compile(rf"(?<![A-Za-z]){DECISION}(?:{gap}){subject}\Z", _FLAGS)
        self._subject = re.compile(rf"[^\w\n]{{0,6}}{subject}", _FLAGS)
        self._sentence = re.compile(sentence, _FLAGS)

    def in_object(self, found: dict[str, Any]) -> float | None:
        values = {self._parse_field(value) for value in values_of(found, self._keys)}
        return values.pop() if len(values) == 1 else None

    def labelled(self, text: str, beside_object: bool = False) -> list[FoundVerdict]:  # noqa: ARG002
        """Find words with a label or a marker."""
        text = without_quotes(text)
        verdicts = []
        for match in self._word.finditer(text):
            before = text[max(0, match.start() - CONTEXT_CHARS) : match.start()]
            after = text[match.end() : match.end() + CONTEXT_CHARS]
            is_marked = self._opened.search(before) and _CLOSED.match(after)
            if is_marked or (self._labelled.search(before) and _is_decision(match, after)):
                verdicts.append(self._verdict(match))
        return verdicts

    def in_sentences(self, text: str) -> list[FoundVerdict]:
        """Find words that decide in a sentence."""
        found = self._sentence.finditer(without_quotes(text))
        return [
            FoundVerdict(value, *each.span("word")) for each in found if (value := self.value(each["word"])) is not None
        ]

    def alone_on_last_line(self, text: str) -> list[FoundVerdict]:
        """Find the word that is the whole content of the last line."""
        line, offset = last_line(text)
        for match in self._word.finditer(line):
            if self._subject.fullmatch(line, 0, match.start()) and _END.match(line, match.end()):
                return [self._verdict(match).moved(offset)]
        return []

    def value(self, word: str) -> float | None:
        """Return the value of a word or model token; None when it is no verdict."""
        return self._values.get(re.sub(r"\s+", " ", word.strip().lower()))

    def _verdict(self, match: re.Match[str]) -> FoundVerdict:
        return FoundVerdict(self._values[re.sub(r"\s+", " ", match.group().lower())], *match.span())

    def _parse_field(self, value: object) -> float | None:
        if isinstance(value, bool):
            return self.value("true" if value else "false")
        if not isinstance(value, str):
            return None
        return next((verdict.value for verdict in self.alone_on_last_line(value.strip())), None)


def _is_decision(match: re.Match[str], after: str) -> bool:
    """Return whether the word is the verdict, rather than an alternative in a list of options or the article "a"."""
    if len(match.group()) == 1 and match.group().isascii():
        return match.group().isupper() and bool(_LETTER_END.match(after))
    return not _ALTERNATIVE.match(after)


_PASSED = [
    "pass",
    "passed",
    "passes",
    "correct",
    "right",
    "yes",
    "true",
    "通过",
    "合格",
    "正确",
    "正解",
    "통과",
    "верно",
]
_PASSED += ["правильно", "bestanden", "richtig", "correcto", "correcta"]
_FAILED = ["fail", "failed", "fails", "incorrect", "wrong", "no", "false", "not pass", "not passed", "not correct"]
_FAILED += ["does not pass", "did not pass", "doesn't pass"]
_FAILED += ["不通过", "未通过", "不合格", "不正确", "错误", "不正解"]
_FAILED += ["불합격", "실패", "неверно", "неправильно", "nicht bestanden", "falsch", "incorrecto", "incorrecta"]
PASS_FAIL = WordReader(
    "verdict result pass passed passes correct is_correct decision judgment judgement outcome grade answer",
    dict.fromkeys(_PASSED, 1.0) | dict.fromkeys(_FAILED, 0.0),
    r"(?:(?:the[ ])?(?:response|answer)[ ])?(?:is[ ])?(?:an?[ ])?[*_`]{0,3}",
    r"""\bthe[ ](?:response|answer|solution)[ ](?:clearly[ ]|therefore[ ]|is[ ])*[*_`]{0,3}
    (?P<word>does[ ]not[ ]pass|passes|fails|correct|incorrect|not[ ]correct|wrong)\b""",
)

_TIES = ["tie", "draw", "equal", "both", "neither", "平局", "平手", "引き分け", "ничья", "무승부", "empate"]
_RESPONSE = any_of(
    "response answer assistant model option output candidate Antwort réponse respuesta ответ 回答 回复 助手 応答 응답"
)
PAIRWISE = WordReader(
    "winner verdict choice preferred preference better best result answer decision",
    {"a": 1.0, "b": 0.0, "c": 0.5} | dict.fromkeys(_TIES, 0.5),
    rf"""(?:(?:it[ ]is|it['’]s)[ ])?(?:an?[ ])?(?:{_RESPONSE}[ ]?)?[*_`(\["]{{0,4}}""",
    rf"""(?:{_RESPONSE}[ ]?|^)[*_`("]{{0,4}}(?P<word>[AB])[*_`)"]{{0,4}}[ ]?
    (?:更好|更优|较好|胜出|の方が
      |(?:is|was|wins|performs|does|provides|gives|offers|ist)\b[^.\n]{{0,40}}?(?<!not[ ])
        \b(?:better|best|stronger|superior|winner|preferable|wins|besser|more[ ](?:helpful|accurate|correct)))""",
)
