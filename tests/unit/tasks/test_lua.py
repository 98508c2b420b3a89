"""Lua scripts: output of the loader, and the distance of each script from the limits of Lua and of Redis 6.2."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tasks import lua
from tests.support.lua_scopes import Scopes, read_scopes

#: Limits of Lua 5.1, and the distance that a script must keep from each limit.
MOST_LOCALS, SPARE_LOCALS = 200, 60
MOST_UPVALUES, SPARE_UPVALUES = 60, 20
#: Names that Redis gives to scripts, and functions of Lua's libraries that are the same in every version.
PROVIDED = {"redis", "cjson", "ARGV", "KEYS", "string", "table", "math"} | {
    "ipairs", "pairs", "next", "unpack", "tonumber", "tostring", "type",
}  # fmt: skip
#: Commands that came after Redis 6.2, or that crash it inside scripts.
REFUSED = re.compile(
    r"'(INCRBYFLOAT|EXPIRETIME|PEXPIRETIME|SINTERCARD|ZINTERCARD|LMPOP|ZMPOP|HEXPIRE\w*|FUNCTION|FCALL)'"
)

SCRIPTS = [pytest.param(path, id=str(path.relative_to(lua.ROOT))) for path in lua.scripts()]


@cache
def scopes(script: Path) -> Scopes:
    return read_scopes(lua.load(script, lua.all_hooks()))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_far_from_the_limits_of_lua(script: Path, record_property: Callable[[str, object], None]) -> None:
    found = scopes(script)
    left = MOST_LOCALS - found.main.most_locals
    record_property("local variables left", left)
    assert left >= SPARE_LOCALS, f"{left} local variables are left in {script.name}: move code into a module"
    for function in found.functions:
        upvalues = len(function.upvalues)
        assert upvalues <= MOST_UPVALUES - SPARE_UPVALUES, f"{function.name} in {script.name} has {upvalues} upvalues"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_uses_only_names_that_it_includes(script: Path) -> None:
    assert scopes(script).globals <= PROVIDED


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_on_redis_6_2(script: Path) -> None:
    assert not REFUSED.search(lua.load(script, lua.all_hooks()))


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_header_lists_each_argument_on_a_line_of_its_own(script: Path) -> None:
    text = script.read_text()
    header = text[: re.search(r"^(?!--)", text, re.MULTILINE).start()]  # type: ignore[union-attr]
    body = text[len(header) :]
    assert header.startswith("-- "), "the first line describes the script"
    assert re.search(r"^-- Returns", header, re.MULTILINE)
    listed = {int(number) for number in re.findall(r"^--   (\d+)(?:\.\.)?  +\S", header, re.MULTILINE)}
    used = {int(number) for number in re.findall(r"\bARGV\[(\d+)\]", body)}
    assert used <= listed, f"ARGV of {script.name} without a line in its header"


def test_module_names_are_unique() -> None:
    modules = [path.stem for path in lua.ROOT.glob("*/**/scripts/include/*.lua") if ".venv" not in path.parts]
    assert len(set(modules)) == len(modules)


# --- the loader ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "include").mkdir()
    return tmp_path


def script(folder: Path, text: str) -> Path:
    path = folder / "script.lua"
    path.write_text(text)
    return path


def module(folder: Path, name: str, text: str) -> Path:
    path = folder / "include" / f"{name}.lua"
    path.write_text(text)
    return path


def test_a_script_gets_only_the_keys_and_constants_that_it_uses(folder: Path) -> None:
    text = lua.load(script(folder, "-- keys.jobs() is only mentioned\nreturn keys.job_blocks(constants.PRIORITIES[1])"))
    assert "job_blocks = function(job_id) return 'assay:job:' .. job_id .. ':blocks' end" in text
    assert 'PRIORITIES = {"interactive", "normal", "bulk"}' in text
    assert "assay:jobs" not in text
    assert "RANKS" not in text


def test_modules_are_inserted_once_and_after_the_modules_they_include(folder: Path) -> None:
    module(folder, "one", "-- @include two\nlocal one = {two}\nreturn one")
    module(folder, "two", "-- @include clock\nlocal two = {clock.now}\nreturn two")
    text = lua.load(script(folder, "-- @include one\n-- @include two\nreturn one"))
    places = [text.index(f"local {name} = (function()") for name in ("clock", "two", "one")]
    assert places == sorted(places)
    assert text.count("local two = (function()") == 1


def test_a_module_beside_a_script_takes_precedence_over_a_shared_module() -> None:
    own = next(path for path in lua.scripts() if path.name == "admit_submit.lua")
    assert "token_bucket" in lua.load(own)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-- @include nothing", "no module 'nothing'"),
        ("return keys.nothing()", "no function 'nothing'"),
        ("return keys.inspect()", "no function 'inspect'"),
        ("return constants.NOTHING", "no constant 'NOTHING'"),
        ("-- @include circle", "circle -> ring -> circle"),
    ],
)
def test_a_script_that_cannot_be_assembled_is_refused(folder: Path, text: str, said: str) -> None:
    module(folder, "circle", "-- @include ring\nreturn {}")
    module(folder, "ring", "-- @include circle\nreturn {}")
    with pytest.raises(lua.ScriptError, match=said):
        lua.load(script(folder, text))


@pytest.mark.parametrize(("header", "deletes"), [("-- Purpose.\n-- @allow-oom", True), ("-- Like @allow-oom.", False)])
def test_a_script_that_may_exceed_the_memory_limit_deletes_first(folder: Path, header: str, deletes: bool) -> None:
    text = lua.load(script(folder, f"{header}\nreturn redis.call('SET', 'a', 1)"))
    assert ("redis.call('DEL', keys.exemption())" in text) is deletes


def test_hooks_are_a_table_by_kind(folder: Path) -> None:
    hook = module(folder, "rollout_hooks", "local rollout_hooks = {}\nreturn rollout_hooks")
    path = script(folder, "-- @hooks\nreturn hooks")
    assert "local hooks = {}\n" in lua.load(path)
    assert "local hooks = {rollout = rollout_hooks}\n" in lua.load(path, [hook])


def test_scopes_are_counted_like_the_compiler_counts_them() -> None:
    found = read_scopes("""
        local a, b = 1, 'two' -- local c
        local t = {a = b, [a] = c, field = function(x) return x + a end}
        for i = 1, 2 do local d = i end
        for k, v in pairs(t) do t[k] = v.a end
        if a then local e, f, g, h, i, j = 1 end
        local function again(n) return n == 0 or again(n - 1) or function() return b .. d end end
        do local last = 1 end
        return t.a
    """)
    assert found.main.most_locals == 9  # a, b, t, and e to j
    assert found.globals == {"c", "pairs", "d"}
    assert {function.name: function.upvalues for function in found.functions}["again"] == {"again", "b"}
