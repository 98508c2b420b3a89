"""Generator of the scorer and penalty reference in docs/scoring.md: `python -m tasks.scoring.reference_page`."""

import json
import sys
from pathlib import Path

from pydantic import BaseModel

from tasks.scoring import penalties
from tasks.scoring.model_scorer import ModelScorer
from tasks.scoring.policy import PolicyScorer
from tasks.scoring.registry import BUILT_IN, AnyScorer
from tasks.scoring.scorer import Options


def as_markdown() -> str:
    """Return a section per built-in scorer with a table of its options; shared options come first, once."""
    shared = f"### Options of every scorer\n\n{_table(Options, ())}"
    return "\n".join([shared, *map(_section, BUILT_IN)])


def penalties_as_markdown() -> str:
    """Return a section per penalty with a table of its options."""
    return "\n".join(map(_penalty_section, penalties.BUILT_IN))


def _section(scorer: AnyScorer) -> str:
    usual = tuple(
        name
        for name, field in Options.model_fields.items()
        if scorer.options.model_fields[name].default == field.default
    )
    runs = "Runs in a separate process, which is killed at its time limit.\n\n" if scorer.isolated else ""
    if isinstance(scorer, ModelScorer):
        runs = "Runs a model on a device.\n\n"
    if isinstance(scorer, PolicyScorer):
        runs = "Runs episodes on devices that have a policy server: [policies.md](policies.md).\n\n"
    cached = "Scores are cached.\n\n" if scorer.cacheable else ""
    return f"### `{scorer.name}`\n\n{scorer.description}\n\n{runs}{cached}{_table(scorer.options, usual)}"


def _penalty_section(penalty: penalties.AnyPenalty) -> str:
    tokens = "Needs the response's length in tokens.\n\n" if penalty.needs_length else ""
    return f"### `{penalty.name}`\n\n{penalty.description}\n\n{tokens}{_table(penalty.options, ())}"


def _table(options: type[BaseModel], left_out: tuple[str, ...]) -> str:
    properties = options.model_json_schema(by_alias=True)["properties"]
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, field in options.model_fields.items():
        if name in left_out:
            continue
        shown = field.alias or name
        default = "required" if field.is_required() else f"`{json.dumps(field.default, default=dict)}`"
        choices = properties[shown].get("enum")
        among = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices and name != "read" else ""
        # The meaning of a shared option is printed once, in the shared table.
        meaning = (
            "As above." if name in Options.model_fields and options is not Options else f"{field.description}{among}"
        )
        rows.append(f"| `{shown}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def write(page: Path) -> None:
    """Replace the generated sections of a Markdown page."""
    text = page.read_text()
    for name, section in (("scorers", as_markdown()), ("penalties", penalties_as_markdown())):
        start, end = f"<!-- {name}: written by `make docs` -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n{section}\n{end}{rest.partition(end)[2]}"
    page.write_text(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]))
    else:
        print(as_markdown(), penalties_as_markdown(), sep="\n", end="")
