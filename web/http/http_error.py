"""Exception for errors of HTTP itself, such as a body that is too large.

`web/http/errors.py` converts it to a response.
"""

from collections.abc import Mapping


class HttpError(Exception):
    def __init__(
        self,
        status: int,
        kind: str,
        title: str,
        detail: str,
        field: str = "",
        headers: Mapping[str, str | list[str]] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.title, self.field, self.headers = status, kind, title, field, headers or {}


def too_large(detail: str, field: str = "") -> HttpError:
    return HttpError(413, "too_large", "Too large", detail, field)


def broken(detail: str, field: str = "") -> HttpError:
    return HttpError(400, "broken", "Malformed body", detail, field)
