"""Who says what was done, beside the peer itself."""

from abc import ABC, abstractmethod
from pathlib import Path

from workers.development_api.handle import Handle


class Witness(ABC):
    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def count_done(self) -> int | None:
        """Answers so far; None: nobody can say before the end."""

    @abstractmethod
    def count_made(self) -> tuple[int, int]:
        """How many calls were made, or rows begun, and how many of these were different."""


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
    """A file with a line for each row that was begun, written by whoever begins it; for Assay, which says how many rows
    a dead worker held, by the program as it reads them. Rows of a batch end together, so nobody can say when half of
    them are done."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "begun.log"

    def add(self, query: str, times: int = 1) -> None:
        with self._file.open("a") as file:
            file.write(f"{query}\n" * times)

    def reset(self) -> None:
        self._file.write_text("")

    def count_done(self) -> None:
        return None

    def count_made(self) -> tuple[int, int]:
        lines = self._file.read_text().splitlines()
        return len(lines), len(set(lines))
