"""Call counters: count the calls of a peer independently of the peer."""

from abc import ABC, abstractmethod
from pathlib import Path

from workers.development_api.control import Handle


class CallCounter(ABC):
    """Counts calls and answers since its last reset."""

    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def count_answers(self) -> int | None:
        """Return the number of answers so far; None if it is unknown before the end."""

    @abstractmethod
    def count_calls(self) -> tuple[int, int]:
        """Return the number of calls (or started rows), and the number of different calls among them."""


class ApiCounts(CallCounter):
    """Counter of the development API, which counts its requests."""

    def __init__(self, api: Handle) -> None:
        self._api = api

    def reset(self) -> None:
        self._api.reset()

    def count_answers(self) -> int:
        done: int = self._api.counts()["by_status"].get("200", 0)
        return done

    def count_calls(self) -> tuple[int, int]:
        counts = self._api.counts()
        return counts["calls"], counts["distinct_bodies"]


class Journal(CallCounter):
    """File with a line for each started row, written by the process that starts it.

    For Assay, the client process writes it while it reads the rows, because Assay logs the number of rows that a dead
    worker held. The number of answers is unknown before the end: the rows of a batch end together."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "begun.log"

    def add(self, query: str, times: int = 1) -> None:
        with self._file.open("a") as file:
            file.write(f"{query}\n" * times)

    def reset(self) -> None:
        self._file.write_text("")

    def count_answers(self) -> None:
        return None

    def count_calls(self) -> tuple[int, int]:
        lines = self._file.read_text().splitlines()
        return len(lines), len(set(lines))
