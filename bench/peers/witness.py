"""Who says what was done, beside the peer itself."""

from abc import ABC, abstractmethod
from pathlib import Path

from workers.development_api.handle import Handle


class Witness(ABC):
    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def count_done(self) -> int:
        """Answers so far."""

    @abstractmethod
    def count_made(self) -> tuple[int, int]:
        """How many calls were made, or rows computed, and how many of these were different."""


class ApiCounts(Witness):
    """The development API, which counts what it is asked."""

    def __init__(self, api: Handle) -> None:
        self._api = api

    def reset(self) -> None:
        self._api.reset()

    def count_done(self) -> int:
        done: int = self._api.counts()["by_status"].get("200", 0)
        return done

    def count_made(self) -> tuple[int, int]:
        counts = self._api.counts()
        return counts["calls"], counts["distinct_bodies"]


class Journal(Witness):
    """A file with a line for each row that was computed, written by whoever computes it; for Assay, which
    says how many rows a dead worker held, by the program as it reads them."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "computed.log"

    def add(self, query: str, times: int = 1) -> None:
        with self._file.open("a") as file:
            file.write(f"{query}\n" * times)

    def reset(self) -> None:
        self._file.write_text("")

    def count_done(self) -> int:
        return len(self._lines())

    def count_made(self) -> tuple[int, int]:
        lines = self._lines()
        return len(lines), len(set(lines))

    def _lines(self) -> list[str]:
        return self._file.read_text().splitlines()
