"""The scorers' section of docs/scoring.md, written from the scorers themselves: `python -m tasks.scoring.manual`."""

import json
import sys
from pathlib import Path
from typing import Any

from tasks.scoring.registry import BUILT_IN
from tasks.scoring.scorer import Options, Scorer

START, END = "<!-- scorers: written by `make docs` -->\n", "<!-- end of scorers -->\n"


def as_markdown() -> str:
    """Every scorer of ours with a table of its options; what all take comes first, once."""
    shared = f"### Options of every scorer\n\n{_table(Options, ())}"
    return "\n".join([shared, *map(_section, BUILT_IN)])


def _section(scorer: Scorer[Any]) -> str:
    usual = tuple(
        name
        for name, field in Options.model_fields.items()
        if scorer.options.model_fields[name].default == field.default
    )
    limited = "It runs in a process of its own, which is ended at its time limit.\n\n" if scorer.isolated else ""
    cached = "Its scores are cached.\n\n" if scorer.cacheable else ""
    return f"### `{scorer.name}`\n\n{scorer.description}\n\n{limited}{cached}{_table(scorer.options, usual)}"


def _table(options: type[Options], left_out: tuple[str, ...]) -> str:
    properties = options.model_json_schema(by_alias=True)["properties"]
    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, field in options.model_fields.items():
        if name in left_out:
            continue
        shown = field.alias or name
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        choices = properties[shown].get("enum")
        among = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices and name != "read" else ""
        # What all scorers share is explained once.
        meaning = (
            "As above." if name in Options.model_fields and options is not Options else f"{field.description}{among}"
        )
        rows.append(f"| `{shown}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def write(page: Path) -> None:
    """Replace the section of a Markdown page by today's."""
    before, _, rest = page.read_text().partition(START)
    page.write_text(before + START + "\n" + as_markdown() + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]))
    else:
        print(as_markdown(), end="")
