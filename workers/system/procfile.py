"""Parser of the Procfile, which lists the processes of a system: one `name: command` per line."""

import shlex
from pathlib import Path

from workers.processes.supervisor import Command

#: Names of the lines that some configurations do not need: the development API, and the policy servers.
JUDGE = "judge"
POLICIES = "policies"


def read_procfile(path: Path) -> list[Command]:
    """Return the commands of a Procfile. They are split by the rules of a shell, but run without a shell."""
    commands = []
    for line in path.read_text().splitlines():
        name, separator, command = line.partition(":")
        if separator and not line.startswith("#"):
            argv = tuple(shlex.split(command))
            commands.append(Command(name.strip(), argv, stop_last=name.strip() in (JUDGE, POLICIES)))
    return commands
