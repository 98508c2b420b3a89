"""What one run of the command holds: the server, the screen, and the job to come back to."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import dataclass, field

from assay import calls
from assay.cli.board import Board
from assay.cli.screen import Screen
from assay.client import Assay
from assay.connection import Connection
from assay.retry import Retry

#: Seconds a server may take to be there at all. Later losses are ridden out for longer (`--retry-for`).
FIRST_CONTACT_S = 5.0
#: Set where the server was started for this command and ends with it: then no job goes on.
EMBEDDED = "ASSAY_EMBEDDED"
#: Set by one who, before starting such a server, wants to know what is wrong with the command.
CHECK_ONLY = "ASSAY_CHECK_ONLY"


@dataclass
class Session:
    args: argparse.Namespace
    screen: Screen
    job_id: str = ""
    key: str = ""
    """Idempotency key of a submit that is under way."""
    hint: str = ""
    """How the command itself is gone on with."""
    board: Board | None = None
    """What is drawn, where something is."""
    _client: Assay | None = field(default=None, init=False)

    @property
    def client(self) -> Assay:
        """Connected on first use, so that a wrong URL is told in seconds."""
        if self._client is None:
            with Assay(self.args.url, retry=Retry(FIRST_CONTACT_S)) as first:
                first.call(calls.whole("/health", accepted=tuple(range(300, 600))))
            self._client = Assay(self.args.url, retry=Retry(self.args.retry_for))
        return self._client

    def url(self) -> str:
        return Connection.of(self.args.url, "").url

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def how_to_come_back(self) -> str:
        if os.environ.get(EMBEDDED):
            return f"Interrupted. {self.hint}".strip()
        return "\n".join(filter(None, (self._whereabouts(), self.hint)))

    def _whereabouts(self) -> str:
        if self.job_id:
            return (
                f"Job {self.job_id} goes on; nothing was cancelled.\n"
                f"  come back:  assay watch {self.job_id}\n"
                f"  results:    assay results {self.job_id} -o FILE\n"
                f"  stop it:    assay cancel {self.job_id}"
            )
        if self.key:
            return (
                "The server has not answered yet. If it has the whole request the job runs: see `assay status`.\n"
                f"The same command with --key {self.key} finds that job or submits it now; it is never doubled."
            )
        return "Interrupted; nothing was changed."


class Notices(logging.StreamHandler):  # type: ignore[type-arg]  # generic for mypy only, not at run time
    """Retries, told on stderr: on the board, one in the place of the other; else a line each, and a progress bar on the
    same line is wiped first."""

    def __init__(self, session: Session) -> None:
        super().__init__(sys.stderr)
        self._session = session
        self.setFormatter(logging.Formatter(("\r\x1b[K" if sys.stderr.isatty() else "") + "assay: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        board = self._session.board
        if board is None or not board.note(f"assay: {record.getMessage()}"):
            super().emit(record)
