"""The one error tree. A class's docstring is its default message; its place in the tree says what to do.

AssayError
├── Retryable              try again, nothing is wrong with the request
│   ├── RedisUnavailable   Redis is away, full, loading, or cannot write
│   ├── BrokerUnavailable  no message can be sent or counted
│   ├── StorageUnavailable the place of large jobs' files cannot be read or written now
│   ├── BacklogFull        too many items wait already
│   ├── ApiUnavailable     an outside API is away, or limits us, and all tries are used up
│   └── ApiTimeout         an outside API did not answer in time
└── Permanent              trying again changes nothing
    ├── RedisRefused       Redis wants a password, or grants too little
    ├── WorkerNameTaken    another live worker holds this name
    ├── StorageNotShared   large jobs are kept where not all workers can read them
    ├── StoredFileMissing  a file of a large job is gone
    ├── InvalidRequest     the request breaks a rule; `field` says where
    │   ├── InvalidLine    a line of JSONL breaks it; `line` says which
    │   └── UnknownKind    no such kind of job
    ├── UnknownJob         no such job, or it has expired
    ├── CannotJudge        a scorer has no score for this item; `reason` says why
    │   └── NoVerdict      a judge model answered, but gave no verdict
    │       ├── VerdictMissing   none could be read in its reply
    │       ├── ReplyRefused     it refused to judge
    │       ├── ReplyCut         its reply was cut off at its length limit
    │       └── ReplyFiltered    a content filter stopped it
    ├── ApiRefused         an outside API says that the request is wrong
    ├── BudgetSpent        the job's budget is used up
    └── Conflict           the job's state, or an earlier request, forbids it
"""


class AssayError(Exception):
    """Something went wrong in Assay."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class Retryable(AssayError):
    """This failed for now; the same request may succeed later."""


class RedisUnavailable(Retryable):
    """Redis does not answer."""


class BrokerUnavailable(Retryable):
    """The broker does not answer."""


class StorageUnavailable(Retryable):
    """The storage of large jobs does not answer."""


class BacklogFull(Retryable):
    """Too many items wait already: submit again when some are done."""


class ApiUnavailable(Retryable):
    """The API does not answer."""


class ApiTimeout(Retryable):
    """The API did not answer in time."""


class Permanent(AssayError):
    """This failed and will fail again."""


class RedisRefused(Permanent):
    """Redis refuses this user."""


class StorageNotShared(Permanent):
    """Large jobs are kept where not all workers can read them."""


class StoredFileMissing(Permanent):
    """A file of a large job is gone."""


class InvalidRequest(Permanent):
    """The request breaks a rule."""

    def __init__(self, message: str | None = None, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class InvalidLine(InvalidRequest):
    """A line of the body breaks a rule."""

    def __init__(self, line: int, message: str, field: str = "") -> None:
        super().__init__(f"Line {line}: {message}", field or f"line {line}")
        self.line = line


class UnknownKind(InvalidRequest):
    """There is no such kind of job."""


class UnknownJob(Permanent):
    """There is no such job; it may have expired."""


class CannotJudge(Permanent):
    """This item cannot be scored."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class NoVerdict(CannotJudge):
    """The judge gave no verdict."""

    type = "verdict_missing"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.type, message)


class VerdictMissing(NoVerdict):
    """No verdict could be read in the judge's reply."""


class ReplyRefused(NoVerdict):
    """The judge refused to judge."""

    type = "reply_refused"


class ReplyCut(NoVerdict):
    """The judge's reply was cut off at its length limit: raise `sampling.max_tokens`."""

    type = "reply_cut"


class ReplyFiltered(NoVerdict):
    """A content filter stopped the judge's reply."""

    type = "reply_filtered"


class Conflict(Permanent):
    """The state of things forbids this."""


class WorkerNameTaken(Permanent):
    """Another live worker holds this name."""


class ApiRefused(Permanent):
    """The API refuses this request."""


class BudgetSpent(Permanent):
    """The job's budget is used up."""
