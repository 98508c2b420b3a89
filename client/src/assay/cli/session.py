"""State of a run of the command: the client, the screen, and the job that can be resumed after an interruption."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import dataclass, field

from assay import calls
from assay.cli.progress_view import ProgressView
from assay.cli.screen import Screen
from assay.client import Assay
from assay.connection import Connection
from assay.retry import Retry

#: Seconds to retry the first connection. Connections that are lost later are retried for longer (`--retry-for`).
FIRST_CONTACT_S = 5.0
#: Environment variable, set if the server was started for this command and stops with it: then no job keeps running.
EMBEDDED = "ASSAY_EMBEDDED"
#: Environment variable, set to only validate the command line, before a server is started for it.
CHECK_ONLY = "ASSAY_CHECK_ONLY"


@dataclass
class Session:
    args: argparse.Namespace
    screen: Screen
    job_id: str = ""
    key: str = ""
    """Idempotency key of a submit in flight."""
    hint: str = ""
    """How to resume the command itself after an interruption."""
    progress: ProgressView | None = None
    """The progress view on the terminal, if the command shows it."""
    _client: Assay | None = field(default=None, init=False)

    @property
    def client(self) -> Assay:
        """Return the client; the first use checks the connection, so that a wrong URL fails within seconds."""
        if self._client is None:
            with Assay(self.args.url, retry=Retry(FIRST_CONTACT_S)) as first:
                first.call(calls.raw_reply("/health", accepted=tuple(range(300, 600))))
            self._client = Assay(self.args.url, retry=Retry(self.args.retry_for))
        return self._client

    def url(self) -> str:
        return Connection.of(self.args.url, "").url

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def resume_instructions(self) -> str:
        if os.environ.get(EMBEDDED):
            return f"Interrupted. {self.hint}".strip()
        return "\n".join(filter(None, (self._job_instructions(), self.hint)))

    def _job_instructions(self) -> str:
        if self.job_id:
            return (
                f"Job {self.job_id} keeps running; nothing was cancelled.\n"
                f"  wait for it:  assay watch {self.job_id}\n"
                f"  results:      assay results {self.job_id} -o FILE\n"
                f"  cancel it:    assay cancel {self.job_id}"
            )
        if self.key:
            return (
                "The server has not responded yet. If it received the request, the job runs: see `assay status`.\n"
                f"The same command with --key {self.key} finds that job or submits it now; it never runs twice."
            )
        return "Interrupted; no job was submitted or changed."


class RetryLogHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic for mypy only, not at run time
    """Log handler that prints retries to stderr. A progress view shows only the latest retry, in its last line;
    without a view each retry is a line of its own, after a progress bar on the same line is erased."""

    def __init__(self, session: Session) -> None:
        super().__init__(sys.stderr)
        self._session = session
        self.setFormatter(logging.Formatter(("\r\x1b[K" if sys.stderr.isatty() else "") + "assay: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        progress = self._session.progress
        if progress is None or not progress.show_note(f"assay: {record.getMessage()}"):
            super().emit(record)
