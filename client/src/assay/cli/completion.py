"""`assay completion SHELL`: print a completion script, generated from the argument parser by the library shtab.

shtab is optional (`pip install 'assay-client[completion]'`), as a trainer's environment has no use for it.
"""

from __future__ import annotations

import argparse

from assay.cli import exits
from assay.cli.session import Session

SHELLS = ("bash", "zsh", "fish")
_INSTALL = "pip install 'shtab>=1.9'"  # 1.9 is the first version that supports fish; the extra asks for the same
#: Metavars of arguments that are paths of this machine, and the name of shtab's completion for them.
_PATHS = {"FILE": "FILE", "FOLDER": "DIRECTORY"}


def command(session: Session, parser: argparse.ArgumentParser) -> int:
    session.screen.line(script(session.args.shell, parser))
    return exits.OK


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the completion script of a shell; raise ValueError if shtab is missing or too old for that shell."""
    try:
        import shtab
    except ImportError:
        raise ValueError(f"completion scripts need the package shtab: {_INSTALL}") from None
    _complete_paths(parser, {metavar: getattr(shtab, name) for metavar, name in _PATHS.items()})
    try:
        return shtab.complete(parser, shell)
    except NotImplementedError:
        raise ValueError(f"shtab {shtab.__version__} does not support {shell}: {_INSTALL}") from None


def _complete_paths(parser: argparse.ArgumentParser, by_metavar: dict[str, dict[str, str]]) -> None:
    """Set the attribute `complete`, which shtab reads, on each path argument of a parser and of its subcommands."""
    for action in parser._actions:  # argparse has no public way to list the arguments of a parser
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                _complete_paths(subcommand, by_metavar)
        elif action.metavar in by_metavar:
            action.complete = by_metavar[action.metavar]  # type: ignore[attr-defined]
