"""`python -m assay`: the command, where its script is not on PATH."""

from assay.cli.main import entry

entry()
