"""Loader of Lua scripts: assembles each `.lua` file into one self-contained script for Redis.

Redis has no `require`, and Lua allows 200 local variables and 60 upvalues per function, so a script gets only the code
that it names:

- `-- @include clock` inserts `include/clock.lua` as the local variable `clock`. A module is looked up in the folder
  `include` beside the script, then in `SHARED`. It is inserted once, after the modules that it includes itself.
- `-- @hooks` inserts the hook modules that kinds registered, as the local variable `hooks`: kind name -> module.
- `-- @allow-oom`, in a script, lets it write when Redis is full (`maxmemory`). The work of accepted jobs goes on then,
  and memory is freed; scripts that begin new work fail. (Redis 7 has a flag of this name, Redis 6.2 has not.)
- `keys.job(job_id)` calls the function of the same name in `config/keys.py`. Only functions that the script uses are
  inserted.
- `constants.PAGE_ITEMS` reads a value of `tasks/script_constants.py`, likewise.

`python -m tasks.lua --write DIR` writes the assembled scripts; `--check` runs luacheck on them.
"""

import argparse
import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FunctionType

from config import keys
from tasks.script_constants import CONSTANTS

ROOT = Path(__file__).parent.parent
#: Folders of modules that the scripts of every package may include.
SHARED = (ROOT / "tasks/scripts/include", ROOT / "tasks/jobs/state/scripts/include")
#: Packages that have scripts.
PACKAGES = ("tasks", "web", "workers")
#: Suffix of the file name of a hook module, after the name of its kind.
HOOKS_SUFFIX = "_hooks"

_DIRECTIVE = re.compile(r"^-- @(include (?P<name>[a-z_]+)|hooks)\s*$", re.MULTILINE)
_ALLOW_OOM = re.compile(r"^-- @allow-oom$", re.MULTILINE)
#: Redis checks `maxmemory` only at the first write of a script, and never refuses a deletion. The key does not exist.
_EXEMPTION = "redis.call('DEL', keys.exemption())"
_COMMENT = re.compile(r"--.*")
_KEY = re.compile(r"\bkeys\.(\w+)")
_CONSTANT = re.compile(r"\bconstants\.(\w+)")
_FINDING = re.compile(r"(?P<file>\S+?\.lua):(?P<line>\d+)(?P<rest>:.*)")


class ScriptError(Exception):
    """A script cannot be assembled; the message names the file and the cause."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an assembled script, with its place in the sources."""

    text: str
    path: Path | None = None
    """None for a line that the loader generated."""
    number: int = 0


@dataclass
class _Assembly:
    """The modules of one script, in the order in which they are inserted."""

    hooks: Sequence[Path]
    lines: list[Line] = field(default_factory=list)
    inserted: dict[str, Path] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)

    def insert_includes(self, path: Path) -> None:
        """Insert the modules that this file includes, unless they are inserted already."""
        for match in _DIRECTIVE.finditer(_read(path)):
            if match["name"]:
                self._insert(match["name"], _find(match["name"], path))
            elif "hooks" not in self.inserted:
                self._insert_hooks(path)

    def _insert(self, name: str, path: Path) -> None:
        if name in self.pending:
            raise ScriptError(f"{_short(path)}: modules include each other: {' -> '.join([*self.pending, name])}")
        if name in self.inserted:
            if self.inserted[name] != path:
                raise ScriptError(f"{_short(path)} and {_short(self.inserted[name])} have the same name: rename one")
            return
        self.pending.append(name)
        self.insert_includes(path)
        self.pending.pop()
        self.inserted[name] = path
        self.lines += [Line(f"local {name} = (function()"), *_lines(path), Line("end)()")]

    def _insert_hooks(self, path: Path) -> None:
        if "hooks" in self.pending:
            raise ScriptError(f"{_short(path)}: a hook module includes the module that calls hooks")
        self.pending.append("hooks")
        for hook in self.hooks:
            self._insert(hook.stem, hook)
        self.pending.pop()
        self.inserted["hooks"] = path
        entries = ", ".join(f"{hook.stem.removesuffix(HOOKS_SUFFIX)} = {hook.stem}" for hook in self.hooks)
        self.lines.append(Line(f"local hooks = {{{entries}}}"))


def load(script: Path, hooks: Iterable[Path] = ()) -> str:
    """Return the text of a script as Redis takes it. Raises ScriptError."""
    return "\n".join(line.text for line in assemble(script, tuple(hooks))) + "\n"


@cache
def assemble(script: Path, hooks: tuple[Path, ...] = ()) -> Sequence[Line]:
    """Return the lines of a script with its modules, keys and constants. Raises ScriptError."""
    assembly = _Assembly(hooks)
    assembly.insert_includes(script)
    exemption = [Line(_EXEMPTION)] if _ALLOW_OOM.search(_read(script)) else []
    body = [*exemption, *assembly.lines, *_lines(script)]
    code = "\n".join(_COMMENT.sub("", line.text) for line in body)
    before = [Line(line) for line in (*_keys(code, script), *_constants(code, script))]
    return (*before, *body)


def scripts() -> list[Path]:
    """Return the scripts of every package, sorted by path."""
    return sorted(path for package in PACKAGES for path in (ROOT / package).glob("**/scripts/*.lua"))


def all_hooks() -> tuple[Path, ...]:
    """Return the hook modules of every kind."""
    pattern = f"**/scripts/include/*{HOOKS_SUFFIX}.lua"
    return tuple(sorted(path for package in PACKAGES for path in (ROOT / package).glob(pattern)))


def _find(name: str, includer: Path) -> Path:
    beside = includer.parent if includer.parent.name == "include" else includer.parent / "include"
    for folder in (beside, *SHARED):
        if (path := folder / f"{name}.lua").is_file():
            return path
    raise ScriptError(f"{_short(includer)}: there is no module {name!r}; correct the line `-- @include {name}`")


@cache
def _read(path: Path) -> str:
    return path.read_text()


def _lines(path: Path) -> Iterator[Line]:
    for number, text in enumerate(_read(path).splitlines(), 1):
        yield Line(text, path, number)


def _keys(code: str, script: Path) -> Iterator[str]:
    """Yield the table `keys`, with the functions that the code calls."""
    if used := sorted(set(_KEY.findall(code))):
        yield "local keys = {"
        for name in used:
            function = getattr(keys, name, None)
            if not isinstance(function, FunctionType):
                raise ScriptError(f"{_short(script)}: config/keys.py has no function {name!r}")
            yield f"  {name} = {_key_function(function)},"
        yield "}"


@cache
def _key_function(function: FunctionType) -> str:
    """Return the Lua form of a function that formats its parameters into a key."""
    parameters = list(inspect.signature(function).parameters)
    texts = [f"'{text}'" for text in function(*("\0" for _ in parameters)).split("\0")]
    names = iter(parameters)
    parts = [part for text in texts[1:] for part in (next(names), text) if part != "''"]
    return f"function({', '.join(parameters)}) return {' .. '.join([texts[0], *parts])} end"


def _constants(code: str, script: Path) -> Iterator[str]:
    """Yield the table `constants`, with the values that the code reads."""
    if used := sorted(set(_CONSTANT.findall(code))):
        yield "local constants = {"
        for name in used:
            if name not in CONSTANTS:
                raise ScriptError(f"{_short(script)}: tasks/script_constants.py has no constant {name!r}")
            yield f"  {name} = {_literal(CONSTANTS[name])},"
        yield "}"


def _literal(value: object) -> str:
    """Return a value as Lua source: a set becomes a table of `true` by member."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"[{_literal(name)}] = {_literal(each)}" for name, each in value.items()) + "}"
    if isinstance(value, frozenset):
        return _literal(dict.fromkeys(sorted(value), True))
    if isinstance(value, Sequence):
        return "{" + ", ".join(_literal(each) for each in value) + "}"
    raise TypeError(f"{value!r} has no Lua form")


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


# --- the command line -------------------------------------------------------------------------------------------------


def write(folder: Path) -> dict[Path, Sequence[Line]]:
    """Write every assembled script into a folder, named by its path. Returns the lines of each file."""
    written = {}
    for script in scripts():
        lines = assemble(script, all_hooks())
        target = folder / _short(script).replace("/scripts/", "/").replace("/", "_")
        target.write_text("\n".join(line.text for line in lines) + "\n")
        written[target] = lines
    return written


def check() -> int:
    """Run luacheck on the assembled scripts. Each finding is printed once, with its file and line in the sources."""
    if shutil.which("luacheck") is None:
        print(
            "luacheck is not installed, so the Lua scripts are not linted: apt-get install lua-check", file=sys.stderr
        )
        return 0
    with tempfile.TemporaryDirectory() as name:
        written = write(Path(name))
        argv = [
            "luacheck",
            "--config",
            str(ROOT / ".luacheckrc"),
            "--formatter",
            "plain",
            "--codes",
            *map(str, written),
        ]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
        findings = dict.fromkeys(_located(line, written) for line in result.stdout.splitlines() if line)
    print(*findings, result.stderr, sep="\n", end="") if findings or result.stderr else None
    return result.returncode


def _located(finding: str, written: Mapping[Path, Sequence[Line]]) -> str:
    if (match := _FINDING.fullmatch(finding)) and (lines := written.get(Path(match["file"]))):
        line = lines[int(match["line"]) - 1]
        if line.path:
            return f"{_short(line.path)}:{line.number}{match['rest']}"
    return finding


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.lua", description="Assemble the Lua scripts.")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", type=Path, metavar="DIR", help="write every assembled script into this folder")
    group.add_argument("--check", action="store_true", help="run luacheck on the assembled scripts")
    arguments = parser.parse_args(argv)
    if arguments.check:
        return check()
    arguments.write.mkdir(parents=True, exist_ok=True)
    write(arguments.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
