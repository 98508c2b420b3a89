"""Allow-list of URLs that a client may name: a URL must be below a prefix from a setting."""

import re

from tasks.errors import InvalidRequest

#: Ways to write a step to a parent folder, or to nest URLs, as fsspec's `zip://a::file://b` does.
_ESCAPES = re.compile(r"(^|/)\.\.?(/|$)|%2e|%2f|%5c|\\|::|[\x00-\x1f]", re.IGNORECASE)


class AllowedUrls:
    def __init__(self, prefixes: str, setting: str, field: str, instead: str) -> None:
        """`instead`: advice for a client where the setting is empty."""
        given = [each.strip() for each in prefixes.split(",") if each.strip()]
        self._prefixes = [each if each.endswith("/") else f"{each}/" for each in given]
        self._setting, self._field, self._instead = setting, field, instead

    def prefix_of(self, url: str) -> str:
        """Return the prefix that allows the URL. Raises InvalidRequest for a URL that is not allowed."""
        if not self._prefixes:
            raise self.error(f"this server reads no URLs ({self._setting} is empty): {self._instead}.")
        prefix = next((each for each in self._prefixes if url.startswith(each) or url == each[:-1]), None)
        if prefix is None or _ESCAPES.search(url.partition("://")[2]):
            raise self.error(f"is not below a URL that this server may read ({self._setting}): move the file there.")
        return prefix

    def error(self, sentence: str) -> InvalidRequest:
        return InvalidRequest(f"{self._field}: {sentence}", field=self._field)
