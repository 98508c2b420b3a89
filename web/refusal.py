"""A request that is not served for a reason that lies in HTTP itself. `web/errors.py` makes the answer of it."""

from collections.abc import Mapping


class Refused(Exception):
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


def too_large(detail: str, field: str = "") -> Refused:
    return Refused(413, "too_large", "Too large", detail, field)


def broken(detail: str, field: str = "") -> Refused:
    return Refused(400, "broken", "Cannot be read", detail, field)
