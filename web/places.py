"""Places that a URL given by a client may lie in: below one of a setting's prefixes, and nowhere else."""

import re

from tasks.errors import InvalidRequest

#: Ways to write a step upwards, or to name a place within a place, as fsspec's `zip://a::file://b` does.
_DEVIOUS = re.compile(r"(^|/)\.\.?(/|$)|%2e|%2f|%5c|\\|::|[\x00-\x1f]", re.IGNORECASE)


class Places:
    def __init__(self, prefixes: str, setting: str, field: str, instead: str) -> None:
        """`instead`: what a client may do where there are no such places."""
        given = [each.strip() for each in prefixes.split(",") if each.strip()]
        self._prefixes = [each if each.endswith("/") else f"{each}/" for each in given]
        self._setting, self._field, self._instead = setting, field, instead

    def prefix_of(self, url: str) -> str:
        """The place it lies in. Raises InvalidRequest for one that may not be read."""
        if not self._prefixes:
            raise self.refused(f"this server reads no URLs ({self._setting} is empty): {self._instead}.")
        prefix = next((each for each in self._prefixes if url.startswith(each) or url == each[:-1]), None)
        if prefix is None or _DEVIOUS.search(url.partition("://")[2]):
            raise self.refused(f"is not below one of the places this server may read ({self._setting}).")
        return prefix

    def refused(self, sentence: str) -> InvalidRequest:
        return InvalidRequest(f"{self._field}: {sentence}", field=self._field)
