"""Exit codes of `assay`. docs/client.md has this table."""

from __future__ import annotations

OK = 0
FAILED = 1  # the job or some of its items failed, or a check of `assay doctor` failed
USAGE = 2  # the exit code of argparse
CONNECTION = 3
REFUSED = 4  # the server responded with an error
TIMED_OUT = 5
BROKEN_PIPE = 141
INTERRUPTED = 130
