"""`python -m assay`: run the command line when the script `assay` is not on PATH."""

from assay.cli.main import entry

entry()
