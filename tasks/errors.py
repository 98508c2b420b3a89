"""The one error tree. A class's docstring is its default message; its place in the tree says what to do.

AssayError
├── Retryable              try again, nothing is wrong with the request
│   ├── RedisUnavailable   Redis is away, full, loading, or cannot write
│   ├── BrokerUnavailable  no message can be sent or counted
│   ├── StorageUnavailable the place of large jobs' files cannot be read or written now
│   ├── BacklogFull        too many items wait already
│   ├── HubUnavailable     the model hub does not answer
│   ├── ApiUnavailable     an outside API is away, or limits us, and all tries are used up
│   │   └── ApiUnreachable    no connection to it, or it was lost
│   ├── ApiTimeout         an outside API did not answer in time
│   ├── PolicyUnavailable  no policy server is free, or it went away
│   ├── PolicyTimeout      a policy server did not answer in time
│   ├── PolicyBroken       a policy server broke over a request that may be good, or answered no protocol of ours
│   ├── CannotFollow       this device does not hold the weights that a rollout is at
│   ├── SimulatorLost      a simulator's process died or hung
│   └── EpisodeTimeout     an episode did not end in time
└── Permanent              trying again changes nothing
    ├── RedisRefused       Redis wants a password, or grants too little
    ├── WorkerNameTaken    another live worker holds this name
    ├── StorageNotShared   large jobs are kept where not all workers can read them
    ├── StoredFileMissing  a file of a large job is gone
    ├── InvalidRequest     the request breaks a rule; `field` says where
    │   ├── InvalidLine    a line of JSONL breaks it; `line` says which
    │   └── UnknownKind    no such kind of job
    ├── UnknownJob         no such job, or it has expired
    ├── UnknownBenchmark   no such benchmark, or run of one
    ├── CannotJudge        a scorer has no score for this item; `reason` says why
    │   └── NoVerdict      a judge model answered, but gave no verdict
    │       ├── VerdictMissing   none could be read in its reply
    │       ├── ReplyRefused     it refused to judge
    │       ├── ReplyCut         its reply was cut off at its length limit
    │       └── ReplyFiltered    a content filter stopped it
    ├── CannotAnswer       a row has no answer; `reason` says why
    ├── ApiRefused         an outside API says that the request is wrong
    ├── BudgetSpent        the job's budget is used up
    ├── ModelUnusable      a model cannot be held here
    │   ├── ModelMissing      no such directory, or not on the hub
    │   ├── NotAModel         a directory without what makes a model, or with broken files
    │   ├── ModelUnsupported  a kind of model that the engine does not run
    │   └── ModelTooLarge     there is not the memory for it
    ├── WeightsRefused     weights do not fit the model they are meant for
    ├── PromptTooLong      the prompt leaves no room in the model's context
    ├── DeviceOutOfMemory  one item alone is too large for the device
    ├── GenerationTimeout  an answer was not complete in time
    ├── OutputNotANumber   the model computed something that is no number for this item
    ├── NoLongerWanted     the job was over before this item was done
    ├── PolicyFailed       a policy server says that the request is wrong, or its actions do not fit
    ├── EnvironmentMissing this worker lacks the environment's package or files
    ├── EnvironmentFailed  the environment itself says that it cannot go on
    └── Conflict           the job's state, or an earlier request, forbids it
"""

import re


class AssayError(Exception):
    """Something went wrong in Assay."""

    reason = ""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    @property
    def name(self) -> str:
        """What an item's outcome calls it: `verdict_missing`."""
        return self.reason or re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


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


class HubUnavailable(Retryable):
    """The model hub does not answer."""


class ApiUnavailable(Retryable):
    """The API does not answer."""


class ApiUnreachable(ApiUnavailable):
    """The API cannot be reached."""


class ApiTimeout(Retryable):
    """The API did not answer in time."""


class PolicyUnavailable(Retryable):
    """No policy server is free."""


class PolicyTimeout(Retryable):
    """The policy server did not answer in time."""


class PolicyBroken(Retryable):
    """The policy server broke."""


class CannotFollow(Retryable):
    """This device could not take the rollout's new weights."""


class SimulatorLost(Retryable):
    """The simulator's process is gone."""


class EpisodeTimeout(Retryable):
    """The episode did not end in time."""


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


class UnknownBenchmark(Permanent):
    """There is no such benchmark."""


class CannotJudge(Permanent):
    """This item cannot be scored."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class CannotAnswer(Permanent):
    """This row cannot be answered."""

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


class ModelUnusable(Permanent):
    """The model cannot be used."""


class ModelMissing(ModelUnusable):
    """There is no such model."""


class NotAModel(ModelUnusable):
    """This is not a model."""


class ModelUnsupported(ModelUnusable):
    """The engine does not run models of this kind."""


class ModelTooLarge(ModelUnusable):
    """There is not enough memory for the model."""


class WeightsRefused(Permanent):
    """These weights do not fit the model."""


class PromptTooLong(Permanent):
    """The prompt leaves no room in the model's context."""


class DeviceOutOfMemory(Permanent):
    """This item alone is too large for the device."""


class GenerationTimeout(Permanent):
    """The answer was not complete in time."""


class OutputNotANumber(Permanent):
    """The model's output for this item is not a number."""


class NoLongerWanted(Permanent):
    """The job was over before this item was done."""


class PolicyFailed(Permanent):
    """The policy cannot do this."""


class EnvironmentMissing(Permanent):
    """This worker cannot run that environment."""


class EnvironmentFailed(Permanent):
    """The environment cannot go on."""
