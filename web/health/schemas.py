"""StrictModel model of `/ready`."""

from web.http.schemas import StrictModel


class Readiness(StrictModel):
    ready: bool
    missing: list[str]
    notes: list[str]
    """A storage that is unavailable, and warnings about a setup that works but is not meant for production."""
