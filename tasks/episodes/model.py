"""What may be asked of an episode, and what one that ran was like."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import AssayError

Suite = Literal["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
#: Of a task, or of an initial state.
Index = Annotated[int, Field(ge=0)]
ReplanSteps = Annotated[int, Field(ge=1, le=1000)]
ResizeSize = Annotated[int, Field(ge=16, le=1024)]
StepsWait = Annotated[int, Field(ge=0, le=1000)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Reach(_Frozen):
    """A point in the plane and four coloured targets. Task n is to stop on the n-th: red, green, blue, yellow."""

    name: Literal["reach"] = "reach"


class Success(_Frozen):
    """When an episode counts as successful, for environments that do not say."""

    info: str = ""
    """The step's info has this entry, and it is true: `is_success`."""
    total_reward: float | None = None
    """The rewards add up to this at least."""
    survives: bool = False
    """It was not over before its last step."""


class Gymnasium(_Frozen):
    """Any environment registered with Gymnasium."""

    name: Literal["gymnasium"] = "gymnasium"
    id: str = Field("Reacher-v5", pattern=r"^[\w.:/-]{1,100}$")
    success: Success | None = None
    """Needed for ids that no adapter knows."""
    images: bool = False
    """Whether the policy also sees a picture (`observation/image`, 224 x 224)."""


class Libero(_Frozen):
    """A LIBERO suite; its package and its meshes must be installed."""

    name: Literal["libero"] = "libero"
    suite: Suite = "libero_spatial"
    resize_size: ResizeSize = 224
    num_steps_wait: StepsWait = 10
    """Steps at the start in which the objects come to rest."""


Environment = Annotated[Reach | Gymnasium | Libero, Field(discriminator="name")]


class EpisodeSpec(_Frozen):
    """All that determines an episode, but for the policy."""

    environment: Environment = Reach()
    task_id: Index = 0
    seed: Seed = 7
    init_state: Index = 0
    """Which of the initial states that the environment offers under this seed."""
    instruction: str = ""
    """Empty: the task's own."""
    replan_steps: ReplanSteps | None = None
    """Steps done of each plan; None: what the environment is used to."""
    max_steps: int | None = Field(None, ge=1, le=100_000)
    video: bool = False


class EpisodeTask(_Frozen):
    """Which task an instruction is for, where that differs from one item to the next."""

    suite: Suite | None = None
    """Of LIBERO."""
    task_id: Index | None = None
    seed: Seed | None = None
    init_state: Index | None = None
    instruction: str = Field("", max_length=10_000)
    """Taken where the response is empty."""


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that ran. One that could not is an error, and not an unsuccessful episode."""

    success: bool
    steps: int
    seconds: float
    instruction: str
    inference_ms: tuple[float, ...]
    """Of each call, as this side saw it, without the wait for the server's turn."""
    simulated_s: float
    """Of its steps."""
    server: str
    policy: str
    version: str
    """Empty: the server does not say."""
    video: bytes | None = None


More = Callable[[int], Sequence[EpisodeSpec]]
"""Asked for further episodes, so many at most, when a server has room."""
Done = Callable[[int, Episode | AssayError], None]
"""Told what came of each, or why it could not run, when it is over; episodes are numbered as they were given."""


class Episodes(Protocol):
    """Runs episodes; what a process holds."""

    def run(self, more: More, on_done: Done, is_cancelled: Callable[[], bool]) -> None:
        """Until there are no more and all are over. Both are called in the caller's own thread."""
