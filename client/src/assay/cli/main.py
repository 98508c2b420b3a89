"""The entry point: from a command line to an exit code. Ctrl-C asks nothing and cancels nothing."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from assay.cli import exits, parser
from assay.cli.screen import Screen
from assay.cli.session import CHECK_ONLY, Notices, Session
from assay.errors import ApiError, AssayError, ConnectionFailed, UnexpectedReply, WaitTimeout


def entry() -> None:
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    args = parser.build().parse_args(argv)
    session = Session(args, Screen(args.json))
    log, notices = logging.getLogger("assay"), Notices(session)
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
        print(f"\n{session.how_to_come_back()}", file=sys.stderr)
        return exits.INTERRUPTED
    except BrokenPipeError:
        # Python would flush stdout once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.BROKEN_PIPE
    except WaitTimeout as error:
        return _say(f"{error}\n{session.how_to_come_back()}", exits.TIME_IS_UP)
    except (ConnectionFailed, UnexpectedReply) as error:
        at = session.url()
        hint = f"\n{session.how_to_come_back()}" if session.job_id or session.key else ""
        return _say(f"{at}: {error} `assay doctor` says more.{hint}", exits.CONNECTION)
    except ApiError as error:
        return _say(str(error), exits.REFUSED)
    except (AssayError, ValueError, OSError) as error:  # of the files and values that were given
        return _say(str(error), exits.USAGE)
    finally:
        session.close()
        log.removeHandler(notices)


def _say(text: str, code: int) -> int:
    print(f"assay: {text}", file=sys.stderr)
    return code
