"""Entry point of `assay`: parses the command line, runs the command and returns its exit code.

Ctrl-C cancels no job and sends no request.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from assay.cli import exits, parser
from assay.cli.screen import Screen
from assay.cli.session import CHECK_ONLY, RetryLogHandler, Session
from assay.errors import ApiError, AssayError, ConnectionFailed, UnexpectedReply, WaitTimeout


def entry() -> None:
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    args = parser.build().parse_args(argv)
    session = Session(args, Screen(args.json))
    log, notices = logging.getLogger("assay"), RetryLogHandler(session)
    log.addHandler(notices)
    log.setLevel(logging.INFO)
    try:
        if hasattr(args, "check"):
            args.check(session)
        if os.environ.get(CHECK_ONLY):
            return exits.OK
        code = int(args.run(session))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(f"\n{session.resume_instructions()}", file=sys.stderr)
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Otherwise Python flushes stdout again at exit, and prints a second BrokenPipeError.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.BROKEN_PIPE
    except WaitTimeout as error:
        return _fail(f"{error}\n{session.resume_instructions()}", exits.TIMED_OUT)
    except (ConnectionFailed, UnexpectedReply) as error:
        instructions = f"\n{session.resume_instructions()}" if session.job_id or session.key else ""
        text = f"{session.url()}: {error} Run `assay doctor` for the cause.{instructions}"
        return _fail(text, exits.CONNECTION)
    except ApiError as error:
        return _fail(str(error), exits.REFUSED)
    except (AssayError, ValueError, OSError) as error:  # caused by a file or a value on the command line
        return _fail(str(error), exits.USAGE)
    finally:
        session.close()
        log.removeHandler(notices)


def _fail(text: str, code: int) -> int:
    print(f"assay: {text}", file=sys.stderr)
    return code
