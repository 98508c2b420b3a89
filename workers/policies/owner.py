"""Who may talk to a server: one process at a time, of all processes of all hosts.

The reference server serialises its clients and answers no health check meanwhile: two owners would only wait for each
other, and neither could tell a slow server from a wedged one.
"""

from typing import Protocol


class Owner(Protocol):
    """What a process asks before it connects. Called from the pool's threads: must neither raise nor take long."""

    def try_take(self, url: str) -> bool:
        """Become the server's owner, or remain it: asked again every few seconds (`pool.TEND_S`), so that a lease can
        be renewed. False when another process owns it, or it is not known who does."""

    def give_back(self, url: str) -> None:
        """Another process may have it now."""


class Alone:
    """For a process that shares its servers with nobody."""

    def try_take(self, url: str) -> bool:  # noqa: ARG002
        return True

    def give_back(self, url: str) -> None:
        """Nobody else wants it."""
