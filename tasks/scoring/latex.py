r"""Minimal LaTeX parser for answers: `\boxed{}`, fractions, and separators between digits, each in linear time."""

import re

_BOXES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_SIMPLE = r"\{\s*(-?[0-9.,]{1,60})\s*\}"
_FRACTION = re.compile(rf"(?<=([0-9]))?\\[dtc]?frac\s*(?:{_SIMPLE}\s*{_SIMPLE}|([0-9])\s*([0-9]))")
_WORDS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]{0,200})\}")
_THIN = re.compile(r"(?<=[0-9])\s?(?:\\[,;: ]|\{,\})\s?(?=[0-9]{3})")
_PLAIN = {
    "\\left": "",
    "\\right": "",
    "\\!": "",
    "\\%": "%",
    "\\$": "$",
    "\\times": "×",
    "\\cdot": "×",
    "\\pi": "π",
    "\\sqrt": "√",
    "\\(": " ",
    "\\)": " ",
    "\\[": " ",
    "\\]": " ",
    "\\,": " ",
    "\\;": " ",
    "\\:": " ",
    "\\ ": " ",
}
_COMMANDS = re.compile("|".join(f"{re.escape(name)}(?![a-zA-Z])" for name in _PLAIN))


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{}`, including nested braces; None without a complete box.

    A box that was cut off is ignored. Of nested boxes, the outer box counts.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    found: tuple[int, int] | None = None
    open_braces: list[int] = []  # where a box's content starts, or -1 for any other brace
    for token in _BOXES.finditer(text):
        mark = token.group()
        if mark == "{":
            open_braces.append(-1)
        elif mark == "}":
            start = open_braces.pop() if open_braces else -1
            if start >= 0:
                found = start, token.start()
        elif len(mark) > 2:
            open_braces.append(token.end())
    return text[slice(*found)] if found else None


def plain_latex(text: str) -> str:
    """Replace simple LaTeX fractions, thousands separators and units by plain text; keep the rest unchanged."""
    if "\\" not in text and "{,}" not in text:
        return text
    text = _THIN.sub(",", text)
    text = _WORDS.sub(r" \1", text)
    text = _FRACTION.sub(_slash, text)
    return _COMMANDS.sub(lambda match: _PLAIN[match.group()], text)


def _slash(match: re.Match[str]) -> str:
    digit_before, top, bottom, short_top, short_bottom = match.groups()
    gap = " " if digit_before else ""  # 1\frac{1}{2} is one and a half, not eleven halves
    return f"{gap}{top or short_top}/{bottom or short_bottom}"
