"""The tables of docs/performance.md, from what `python -m bench` measured. The words around them are by hand."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.benchmarks.machine import describe

_TARGET = re.compile(r"([<>]=?)?\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    value: float
    target: str

    @property
    def is_met(self) -> bool:
        """Of `>= 2`, `< 1.25`, a bare number, which is to be reached exactly, or `none`."""
        if self.target == "none":
            return True
        match = _TARGET.fullmatch(self.target)
        assert match, f"{self.target!r} is no target"
        bound = float(match[2])
        sign = match[1] or "="
        return {">=": self.value >= bound, "<=": self.value <= bound, "<": self.value < bound,
                ">": self.value > bound, "=": self.value == bound}[sign]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    title: str
    code: int
    took_s: float
    lines: Sequence[Line]


def summary(parts: Sequence[Part]) -> Iterator[str]:
    lines = [line for part in parts for line in part.lines]
    met = sum(line.is_met for line in lines)
    yield f"{met} of {len(lines)} targets met, in {sum(part.took_s for part in parts) / 60:.0f} minutes"
    yield from (f"missed: {line.name}: {line.value:.2f}, target {line.target}" for line in lines if not line.is_met)
    yield from (f"failed: {part.name} (exit {part.code})" for part in parts if part.code)


def write(page: Path, parts: Sequence[Part], folder: Path) -> None:
    """Each table between its marks is made anew; one that was not measured stays."""
    text = page.read_text()
    machine = describe((), "")
    about = f"{machine.processor}, {machine.cores} cores, {machine.memory_gb:g} GB, {machine.system}; no GPU."
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items() if version)
    text = _between(text, "machine", f"{about} {versions}. Commit {machine.commit}.")
    for part in parts:
        if part.lines:
            text = _between(text, part.name, "\n".join(_table(part)))
    if (peers := folder / "peers.md").exists():
        text = _between(text, "peers", peers.read_text().strip())
    if (results := folder / "quick" / "results.json").exists():
        text = _between(text, "benchmark", "\n".join(_benchmark(json.loads(results.read_text()))))
    page.write_text(text)


def _between(text: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    assert begin in text, f"docs/performance.md has no mark {begin}"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{table}\n{end}{rest.partition(end)[2]}"


def _table(part: Part) -> Iterator[str]:
    yield f"`python -m bench.{part.name}`, {part.took_s / 60:.0f} minutes."
    yield ""
    yield "| figure | measured | target | |"
    yield "|---|---|---|---|"
    for line in part.lines:
        yield f"| {line.name} | {line.value:.2f} | {line.target} | {'' if line.is_met else '**missed**'} |"


def _benchmark(results: dict[str, object]) -> Iterator[str]:
    """The key figure of every case."""
    cases = results["cases"]
    assert isinstance(cases, list)
    yield "| scenario | case | engine | key figure | spread |"
    yield "|---|---|---|---|---|"
    for case in cases:
        for figure in case["figures"][:1]:
            name = figure["figure"].rpartition("/")[2]
            shown = f"{name} {figure['value']:.4g} {figure['unit']}"
            spread = f"{figure['least']:.4g} to {figure['most']:.4g}"
            yield f"| {case['scenario']} | {case['case']} | {case['engine']} | {shown} | {spread} |"
