"""StrictModel model of `/ready`."""

from web.http.schemas import StrictModel


class Readiness(StrictModel):
    ready: bool
    missing: list[str]
    notes: list[str]
    """Warnings about a setup that works but is not meant for production."""
