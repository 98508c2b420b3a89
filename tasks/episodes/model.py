"""Schema of episodes: the spec of an episode, its environment, its result, and the interface that runs episodes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import AssayError, PolicyUnavailable
from tasks.runtime import Resource

Suite = Literal["libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90"]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
#: Index of a task, or of an initial state.
Index = Annotated[int, Field(ge=0)]
ReplanSteps = Annotated[int, Field(ge=1, le=1000)]
ResizeSize = Annotated[int, Field(ge=16, le=1024)]
StepsWait = Annotated[int, Field(ge=0, le=1000)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Reach(_Frozen):
    """Environment with a point in the plane and four coloured targets. Task n is to stop on the n-th target: red,
    green, blue, yellow."""

    name: Literal["reach"] = "reach"


class Success(_Frozen):
    """Criterion of a successful episode, for environments that do not report success."""

    info: str = ""
    """Name of an entry of the step's info that must be true, such as `is_success`."""
    total_reward: float | None = None
    """Minimum sum of the rewards."""
    survives: bool = False
    """Whether the episode must last until its maximum number of steps."""


class Gymnasium(_Frozen):
    """An environment registered with Gymnasium."""

    name: Literal["gymnasium"] = "gymnasium"
    id: str = Field("Reacher-v5", pattern=r"^[\w.:/-]{1,100}$")
    success: Success | None = None
    """Required for ids without a known adapter."""
    images: bool = False
    """Whether observations include a rendered image (`observation/image`, 224 x 224)."""


class Libero(_Frozen):
    """A LIBERO suite; its package and its meshes must be installed."""

    name: Literal["libero"] = "libero"
    suite: Suite = "libero_spatial"
    resize_size: ResizeSize = 224
    num_steps_wait: StepsWait = 10
    """Steps at the start during which the objects settle."""


Environment = Annotated[Reach | Gymnasium | Libero, Field(discriminator="name")]


class EpisodeSpec(_Frozen):
    """Complete parameters of an episode, except the policy."""

    environment: Environment = Reach()
    task_id: Index = 0
    seed: Seed = 7
    init_state: Index = 0
    """Index of the initial state among the environment's states for this seed."""
    instruction: str = ""
    """Instruction of the policy; empty: the task's own instruction."""
    replan_steps: ReplanSteps | None = None
    """Steps executed of each plan before the next inference; None: the environment's default."""
    max_steps: int | None = Field(None, ge=1, le=100_000)
    video: bool = False


class EpisodeTask(_Frozen):
    """Task of an item's instruction, where tasks differ between items."""

    suite: Suite | None = None
    """Suite of LIBERO."""
    task_id: Index | None = None
    seed: Seed | None = None
    init_state: Index | None = None
    instruction: str = Field("", max_length=10_000)
    """Used when the response is empty."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Result of an episode that ran. An episode that cannot run raises an error: it is not an unsuccessful episode."""

    success: bool
    steps: int
    seconds: float
    instruction: str
    inference_ms: tuple[float, ...]
    """Latency of each call as measured by the client, without the wait for a free server."""
    simulated_s: float
    """Seconds spent in the simulator's steps."""
    server: str
    policy: str
    version: str
    """Version of the policy; empty when the server reports no version."""
    video: bytes | None = None


MoreEpisodes = Callable[[int], Sequence[EpisodeSpec]]
"""Returns at most the given number of further episodes; called when a server has room."""
OnEpisodeEnd = Callable[[int, Episode | AssayError], None]
"""Receives the result of each finished episode, or its error, with the episode's index in the order of submission."""


class Episodes(Protocol):
    """Runner of episodes, held by a worker process."""

    def run(self, more: MoreEpisodes, on_done: OnEpisodeEnd, is_cancelled: Callable[[], bool]) -> None:
        """Run episodes until `more` returns none and the last one has ended. Callbacks run in the caller's thread."""


EPISODES = Resource[Episodes]("episodes", lambda worker: PolicyUnavailable(f"{worker} has no policy server."))
"""Policy servers and simulators of a worker."""
