"""What the exit code of `assay` means. docs/client.md has this table."""

from __future__ import annotations

OK = 0
FAILED = 1  # the job or some of its items failed, or doctor found something broken
USAGE = 2  # argparse's own
CONNECTION = 3
REFUSED = 4  # the server answered with an error
TIME_IS_UP = 5
BROKEN_PIPE = 141
INTERRUPTED = 130
