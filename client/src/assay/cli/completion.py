"""`assay completion SHELL`: a script made from the parser itself, so that it cannot fall behind."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from assay.cli import exits
from assay.cli.session import Session

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Option:
    flags: tuple[str, ...]
    about: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Shape:
    name: str
    about: str
    options: tuple[Option, ...]
    words: tuple[str, ...]
    """Choices of its positional argument."""


def command(session: Session, parser: argparse.ArgumentParser) -> int:
    session.screen.line(script(session.args.shell, parser))
    return exits.OK


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](_shapes(parser))


def _shapes(parser: argparse.ArgumentParser) -> list[Shape]:
    # argparse has no public way to list what was added to it.
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    abouts = {action.dest: action.help or "" for action in commands._choices_actions}
    return [Shape(name, abouts[name], *_arguments(each)) for name, each in commands.choices.items()]


def _arguments(parser: argparse.ArgumentParser) -> tuple[tuple[Option, ...], tuple[str, ...]]:
    options: list[Option] = []
    words: list[str] = []
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:  # another spelling of one that is listed
            continue
        choices = tuple(str(choice) for choice in action.choices or ())
        if action.option_strings:
            options.append(Option(tuple(action.option_strings), action.help or "", action.nargs != 0, choices))
        else:
            words += choices
    return tuple(options), tuple(words)


def _bash(shapes: list[Shape]) -> str:
    cases, values = [], []
    for shape in shapes:
        flags = " ".join([flag for option in shape.options for flag in option.flags] + list(shape.words))
        cases.append(f'    {shape.name}) words="{flags}" ;;')
        for option in shape.options:
            if option.choices:
                values += [f'    {shape.name}:{flag}) words="{" ".join(option.choices)}" ;;' for flag in option.flags]
    names = " ".join(shape.name for shape in shapes)
    return "\n".join(
        [
            '# eval "$(assay completion bash)"',
            "_assay() {",
            '  local current="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" words=""',
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    COMPREPLY=($(compgen -W "{names} --help --version" -- "$current")); return',
            "  fi",
            '  case "$command" in',
            *cases,
            "  esac",
            '  case "$command:${COMP_WORDS[COMP_CWORD-1]}" in',
            *values,
            "  esac",
            '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
            "}",
            "complete -o default -F _assay assay",  # default: file names where no word fits
        ]
    )


def _zsh(shapes: list[Shape]) -> str:
    described = " ".join(_quoted(f"{shape.name}:{shape.about}") for shape in shapes)
    lines = ["#compdef assay", "_assay() {", f"  local -a commands=({described})"]
    lines += ["  if (( CURRENT == 2 )); then _describe command commands; return; fi", "  case $words[2] in"]
    for shape in shapes:
        specs = []
        for option in shape.options:
            value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
            about = option.about.replace("[", "(").replace("]", ")").replace(":", " ")
            specs += [_quoted(f"{flag}[{about}]{value if option.takes_value else ''}") for flag in option.flags]
        rest = f"({' '.join(shape.words)})" if shape.words else "_files"
        lines.append(f"    {shape.name}) _arguments {' '.join(specs)} {_quoted(f'*:argument:{rest}')} ;;")
    return "\n".join([*lines, "  esac", "}", "compdef _assay assay"])


def _fish(shapes: list[Shape]) -> str:
    lines = ["# assay completion fish | source"]
    for shape in shapes:
        lines.append(f"complete -c assay -n __fish_use_subcommand -f -a {shape.name} -d {_quoted(shape.about)}")
        seen = f"-n '__fish_seen_subcommand_from {shape.name}'"
        for option in shape.options:
            names = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = (
                f" -r -a {_quoted(' '.join(option.choices))}" if option.choices else " -r" if option.takes_value else ""
            )
            lines.append(f"complete -c assay {seen} {names}{value} -d {_quoted(option.about)}")
        if shape.words:
            lines.append(f"complete -c assay {seen} -f -a {_quoted(' '.join(shape.words))}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "") + "'"
