"""The development API as a real process of a test, with knobs for its faults."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.support.programs import Program
from workers.development_api.control import READY, Handle, command


class JudgeApi(Handle):
    """Use as `with JudgeApi(run, latency_ms=200) as api:`. The methods are inherited from `Handle`."""

    def __init__(self, run: Callable[..., Program], **knobs: object) -> None:
        self.program = run("python", *command(**knobs))
        super().__init__(self.program.wait_for(READY.pattern)[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.program.stop()
