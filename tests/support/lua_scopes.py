"""Scopes of a Lua 5.1 script: local variables active at once, upvalues, and names that are neither. Reads tokens, not a
grammar, which is enough because a scope begins and ends with a keyword.

Counts what the compiler counts: the control variables of a loop (three for each `for`) and the parameters of a function
are local variables of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"--\[\[.*?\]\]|--[^\n]*|\[\[.*?\]\]|'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[A-Za-z_]\w*|0[xX][0-9a-fA-F]+|\d[\w.]*"
    r"|\.\.\.|\.\.|[=~<>]=|\S",
    re.DOTALL,
)
_KEYWORDS = {
    "and",
    "break",
    "do",
    "else",
    "elseif",
    "end",
    "false",
    "for",
    "function",
    "if",
    "in",
    "local",
    "nil",
    "not",
}
_KEYWORDS |= {"or", "repeat", "return", "then", "true", "until", "while"}
_OPERATORS = {"and", "or", "not", ",", "..", "+", "-", "*", "/", "%", "^", "#", "<", ">", "==", "~=", "<=", ">="}
_HIDDEN_PER_LOOP = 3


@dataclass
class Function:
    name: str
    most_locals: int = 0
    """Local variables that are active at once, at most."""
    upvalues: set[str] = field(default_factory=set)
    """Local variables of outer functions that it uses, itself or in functions inside it."""


@dataclass
class Scopes:
    main: Function
    functions: list[Function]
    globals: set[str]
    """Names that no scope declares."""


@dataclass
class _Block:
    function: Function
    is_function: bool = False
    names: list[str] = field(default_factory=list)
    hidden: int = 0


def tokens(source: str) -> list[str]:
    """Return the tokens without comments; every string becomes the number 0."""
    found = (match[0] for match in _TOKEN.finditer(source))
    return ["0" if token.startswith(("'", '"', "[[")) else token for token in found if not token.startswith("--")]


class _Reader:
    def __init__(self, source: str) -> None:
        self.tokens = tokens(source)
        self.at = 0
        self.main = Function("main")
        self.functions = [self.main]
        self.globals: set[str] = set()
        self.blocks = [_Block(self.main, True)]
        self.brackets: list[str] = []

    def read(self) -> Scopes:
        while self.at < len(self.tokens):
            self._next()
        return Scopes(self.main, self.functions, self.globals)

    def _next(self) -> None:
        token = self._take()
        match token:
            case "local" if self._peek() == "function":
                self._take()
                name = self._take()
                self._declare([name])  # it may call itself
                self._open_function(name)
            case "local":
                names = list(self._names())
                if self._peek() == "=":
                    self._take()
                    self._expression()
                self._declare(names)
            case "function":
                name = ""
                while self._peek() != "(":
                    part = self._take()
                    if not name:
                        self._use(part)
                    name += part
                self._open_function(name, ":" in name)
            case "for":
                names = list(self._names())
                self._until("do")
                self._open(names, _HIDDEN_PER_LOOP)
            case "while":
                self._until("do")
                self._open([])
            case "repeat":
                self._open([])
            case "if":
                self._until("then")
                self._open([])
            case "else" | "elseif":
                self.blocks.pop()
                if token == "elseif":
                    self._until("then")
                self._open([])
            case "do":
                self._open([])
            case "until" | "end":
                self.blocks.pop()
            case "{" | "(" | "[":
                self.brackets.append(token)
            case "}" | ")" | "]":
                self.brackets.pop()
            case "." | ":":
                self._take()  # a field
            case _ if token not in _KEYWORDS and re.match(r"[A-Za-z_]", token):
                is_field = self.brackets[-1:] == ["{"] and self._peek() == "=" and self.tokens[self.at - 2] in "{,;"
                if not is_field:
                    self._use(token)

    def _expression(self) -> None:
        """Read to the end of the expressions of a `local`: to the next token that cannot continue one."""
        depth, blocks = len(self.brackets), len(self.blocks)
        is_open = True  # an operand must follow
        while self.at < len(self.tokens):
            token = self._peek()
            if len(self.brackets) == depth and len(self.blocks) == blocks:
                is_word = bool(re.match(r"[A-Za-z_0-9]", token)) and token not in ("and", "or", "not")
                if not is_open and (is_word or token == ";"):
                    return
            self._next()
            if len(self.brackets) == depth and len(self.blocks) == blocks:
                is_open = token in _OPERATORS

    def _until(self, keyword: str) -> None:
        depth = len(self.blocks)
        while not (self._peek() == keyword and len(self.blocks) == depth):
            self._next()
        self._take()

    def _names(self) -> Iterator[str]:
        yield self._take()
        while self._peek() == ",":
            self._take()
            yield self._take()

    def _open_function(self, name: str, has_self: bool = False) -> None:
        self._take()  # (
        parameters = ["self"] if has_self else []
        while (token := self._take()) != ")":
            if token not in (",", "..."):
                parameters.append(token)
        function = Function(name)
        self.functions.append(function)
        self.blocks.append(_Block(function, True))
        self._declare(parameters)

    def _open(self, names: list[str], hidden: int = 0) -> None:
        self.blocks.append(_Block(self.blocks[-1].function, hidden=hidden))
        self._declare(names)

    def _declare(self, names: list[str]) -> None:
        self.blocks[-1].names += names
        function = self.blocks[-1].function
        active = sum(len(block.names) + block.hidden for block in self.blocks if block.function is function)
        function.most_locals = max(function.most_locals, active)

    def _use(self, name: str) -> None:
        crossed = []
        for block in reversed(self.blocks):
            if name in block.names:
                for function in crossed:
                    function.upvalues.add(name)
                return
            if block.is_function:
                crossed.append(block.function)
        self.globals.add(name)

    def _take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""


def read_scopes(source: str) -> Scopes:
    return _Reader(source).read()
