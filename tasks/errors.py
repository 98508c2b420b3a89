"""The error tree of Assay. A class's docstring is its default message; its base class says whether a retry helps.

AssayError
├── Retryable              a retry may succeed: the request is valid
│   ├── RedisUnavailable   Redis is unreachable, full, loading, or cannot write
│   ├── BrokerUnavailable  the broker accepts no messages and returns no counts
│   ├── StorageUnavailable the storage of large jobs cannot be read or written now
│   ├── BacklogFull        too many items are queued
│   ├── MemoryFull         the state Redis is nearly full
│   ├── HubUnavailable     the model hub does not answer
│   ├── ApiUnavailable     an outside API fails or limits the rate, and the retries are used up
│   │   └── ApiUnreachable    no connection to the API, or the connection was lost
│   ├── ApiTimeout         an outside API timed out
│   ├── PolicyUnavailable  no policy server is free, or its connection was lost
│   ├── PolicyTimeout      a policy server timed out
│   ├── PolicyBroken       a policy server failed on a request that may be valid, or violated the protocol
│   ├── CannotFollow       this device does not hold the current weights of a rollout
│   ├── SimulatorLost      a simulator's process crashed or hung
│   └── EpisodeTimeout     an episode timed out
└── Permanent              a retry fails again
    ├── RedisRefused       Redis requires a password, or denies a permission
    ├── WorkerNameTaken    another live worker uses this name
    ├── StorageNotShared   large jobs are stored where some workers cannot read them
    ├── StoredFileMissing  a file of a large job is missing
    ├── InvalidRequest     the request is invalid; `field` has the path of the error
    │   ├── InvalidLine    a line of JSONL is invalid; `line` has its number
    │   └── UnknownKind    the kind of job does not exist
    ├── UnknownJob         the job does not exist, or has expired
    ├── UnknownBenchmark   the benchmark, or the benchmark run, does not exist
    ├── CannotJudge        a scorer has no score for this item; `reason` has the error type
    │   └── NoVerdict      a judge model replied without a verdict
    │       ├── VerdictMissing   no verdict could be parsed from the reply
    │       ├── ReplyRefused     the model refused to judge
    │       ├── ReplyCut         the reply was cut off at its length limit
    │       └── ReplyFiltered    a content filter stopped the reply
    ├── CannotAnswer       a row has no answer; `reason` has the error type
    ├── ApiRefused         an outside API rejects the request as invalid
    ├── BudgetSpent        the job's budget is used up
    ├── ModelUnusable      a model cannot be loaded here
    │   ├── ModelMissing      the directory does not exist, or the hub does not have the model
    │   ├── NotAModel         files of the model are missing or broken
    │   ├── ModelUnsupported  the engine does not support this type of model
    │   └── ModelTooLarge     the memory is too small for the model
    ├── WeightsRefused     weights do not fit their model
    ├── PromptTooLong      the prompt leaves no room in the model's context
    ├── DeviceOutOfMemory  a single item is too large for the device
    ├── GenerationTimeout  a generation timed out
    ├── OutputNotANumber   the model's output for this item is not a number
    ├── NoLongerWanted     the job ended before this item was done
    ├── PolicyFailed       a policy server rejects the request, or its actions do not fit the environment
    ├── EnvironmentMissing this worker lacks the environment's package or files
    ├── EnvironmentFailed  the environment reports that it cannot continue
    └── Conflict           the job's state, or an earlier request, forbids the action
"""

import re
from typing import Literal


class AssayError(Exception):
    """An operation of Assay failed. See the server's log for the cause."""

    reason = ""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())

    @property
    def name(self) -> str:
        """Error type in an item's outcome: `verdict_missing`."""
        return self.reason or re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


class Retryable(AssayError):
    """A temporary error: send the same request again later."""


class RedisUnavailable(Retryable):
    """Redis does not answer: start it, or correct ASSAY_REDIS_URL."""


class BrokerUnavailable(Retryable):
    """The broker does not answer: start it, or correct ASSAY_BROKER_URL."""


class StorageUnavailable(Retryable):
    """The storage of large jobs does not answer: check ASSAY_STORAGE_URL, then try again."""

    def __init__(self, message: str | None = None, access: Literal["read", "written"] = "read") -> None:
        super().__init__(message)
        self.access = access


class BacklogFull(Retryable):
    """Too many items are queued: submit again when some of them are done."""


class MemoryFull(Retryable):
    """The state Redis is nearly full: submit again when jobs have expired or are deleted."""


class HubUnavailable(Retryable):
    """The model hub does not answer: try again later."""


class ApiUnavailable(Retryable):
    """The API does not answer, and the retries are used up: try again later."""


class ApiUnreachable(ApiUnavailable):
    """The API cannot be reached: check the profile's base_url and the network."""


class ApiTimeout(Retryable):
    """The API timed out: try again, or raise the timeout."""


class PolicyUnavailable(Retryable):
    """No policy server is free: try again later, or add servers."""


class PolicyTimeout(Retryable):
    """The policy server timed out: try again, or raise ASSAY_POLICY_REPLY_S."""


class PolicyBroken(Retryable):
    """The policy server failed: see its log."""


class CannotFollow(Retryable):
    """This device could not load the rollout's new weights: see the worker's log."""


class SimulatorLost(Retryable):
    """The simulator's process crashed or hung: the episode is run again."""


class EpisodeTimeout(Retryable):
    """The episode timed out: reduce its steps, or raise ASSAY_EPISODE_S."""


class Permanent(AssayError):
    """A permanent error: the same request fails again, so change it first."""


class RedisRefused(Permanent):
    """Redis denies access: check the user and password in the URL."""


class StorageNotShared(Permanent):
    """Large jobs are stored where some workers cannot read them: use a storage that every host reaches."""


class StoredFileMissing(Permanent):
    """A file of a large job is missing from the storage: submit the job again."""


class InvalidRequest(Permanent):
    """The request is invalid: correct the named field."""

    def __init__(self, message: str | None = None, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class InvalidLine(InvalidRequest):
    """A line of the body is invalid: correct the named line."""

    def __init__(self, line: int, message: str, field: str = "") -> None:
        super().__init__(f"Line {line}: {message}", field or f"line {line}")
        self.line = line


class UnknownKind(InvalidRequest):
    """The kind of job does not exist: check its name."""


class UnknownJob(Permanent):
    """The job does not exist, or has expired: check its id."""


class UnknownBenchmark(Permanent):
    """The benchmark does not exist: check its name."""


class CannotJudge(Permanent):
    """This item cannot be scored."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class CannotAnswer(Permanent):
    """This row has no answer."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class NoVerdict(CannotJudge):
    """The judge replied without a verdict."""

    type = "verdict_missing"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.type, message)


class VerdictMissing(NoVerdict):
    """No verdict could be parsed from the judge's reply."""


class ReplyRefused(NoVerdict):
    """The judge refused to judge: rephrase the rubric, or use another model."""

    type = "reply_refused"


class ReplyCut(NoVerdict):
    """The judge's reply was cut off at its length limit: raise `sampling.max_tokens`."""

    type = "reply_cut"


class ReplyFiltered(NoVerdict):
    """A content filter stopped the judge's reply: use another model or endpoint."""

    type = "reply_filtered"


class Conflict(Permanent):
    """The current state of the job or resource forbids this action."""


class WorkerNameTaken(Permanent):
    """Another live worker uses this name: give each host its own ASSAY_NODE."""


class ApiRefused(Permanent):
    """The API rejects this request: correct it."""


class BudgetSpent(Permanent):
    """The job's budget is used up: submit the rest with a higher budget."""


class ModelUnusable(Permanent):
    """The model cannot be loaded: choose another model, or correct its files."""


class ModelMissing(ModelUnusable):
    """The model does not exist: check its name."""


class NotAModel(ModelUnusable):
    """The directory is not a model: check that its files are complete."""


class ModelUnsupported(ModelUnusable):
    """The engine does not support this type of model: choose another model."""


class ModelTooLarge(ModelUnusable):
    """The device's memory is too small for the model: use a smaller model or a larger device."""


class WeightsRefused(Permanent):
    """The weights do not fit the model: send weights of the same architecture."""


class PromptTooLong(Permanent):
    """The prompt leaves no room in the model's context: shorten it."""


class DeviceOutOfMemory(Permanent):
    """This item alone is too large for the device: shorten it, or use a larger device."""


class GenerationTimeout(Permanent):
    """The generation timed out: raise `timeout_s`, or lower `max_new_tokens`."""


class OutputNotANumber(Permanent):
    """The model's output for this item is not a number."""


class NoLongerWanted(Permanent):
    """The job ended before this item was done."""


class PolicyFailed(Permanent):
    """The policy rejects this request: see the policy server's log."""


class EnvironmentMissing(Permanent):
    """This worker lacks the environment's package or files: install them."""


class EnvironmentFailed(Permanent):
    """The environment cannot continue the episode: see the worker's log."""
