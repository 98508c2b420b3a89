"""Generator of docs/code_map.md: every module with the first sentence of its docstring. `make docs` runs it."""

import argparse
import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: Folders with code, in the order in which a newcomer reads them.
FOLDERS = ("config", "tasks", "web", "workers", "client/src/assay", "examples", "bench")
HEAD = """# Code map

Every module of Assay with the first sentence of its docstring, written by `make docs`.
[architecture.md](architecture.md)
explains how the modules work together; [glossary.md](glossary.md) defines the terms.
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Print the code map, or write it to a file.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the page to write")
    arguments = parser.parse_args(argv)
    if arguments.write:
        arguments.write.write_text(code_map())
    else:
        print(code_map(), end="")


def code_map() -> str:
    """Return the whole page."""
    return HEAD + "".join(f"\n## {folder}\n\n" + "".join(_lines(ROOT / folder, 0)) for folder in FOLDERS)


def _lines(folder: Path, depth: int) -> Iterator[str]:
    """Yield a list entry per module of the folder, then the entries of its packages, indented below their own entry."""
    indent = "  " * depth
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield f"{indent}- `{path.name}`: {_summary(path)}\n"
    for package in sorted(path.parent for path in folder.glob("*/__init__.py")):
        yield f"{indent}- **`{package.name}/`**: {_summary(package / '__init__.py')}\n"
        yield from _lines(package, depth + 1)


def _summary(path: Path) -> str:
    """Return the first sentence of a module's docstring. Raises ValueError for a module without docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    if not docstring:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring: write a sentence on its purpose.")
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", paragraph)[0]


if __name__ == "__main__":
    main()
