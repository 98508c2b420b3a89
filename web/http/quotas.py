"""Quotas of a bearer token, counted in Redis and therefore for every web process together.

Items are limited by a token bucket that fills at `items_per_minute`: a submit is admitted while the bucket is not
empty, and then takes its number of items, into debt if necessary. So a job of any size passes, and the mean rate still
holds.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from redis import Redis

from tasks import lua
from web.http.auth.tokens import Token
from web.http.http_error import HttpError

_SCRIPTS = Path(__file__).with_name("scripts")

#: Seconds an upload may take before it no longer counts as an active job.
UPLOAD_S = 3600
#: Limit of the seconds that a job counts as active.
JOB_S = 7 * 86400


class Admission:
    """A submit in progress; the submitter sets its job and its number of items."""

    job = ""
    items = 0


class Quotas:
    def __init__(self, state: Redis) -> None:
        self._admit = state.register_script(lua.load(_SCRIPTS / "admit_submit.lua"))
        self._settle = state.register_script(lua.load(_SCRIPTS / "settle_submit.lua"))

    @contextmanager
    def admitted(self, token: Token | None) -> Iterator[Admission]:
        """Count a submit against the token's quotas. Raises HttpError (429) when a quota is used up."""
        admission = Admission()
        if token is None or not (token.items_per_minute or token.active_jobs):
            yield admission
            return
        quotas: list[str | int] = [token.name, token.items_per_minute or 0, token.active_jobs or 0]
        submit = f"~{uuid4().hex}"
        _refuse(token, *self._admit(args=[*quotas, submit, UPLOAD_S, JOB_S]))
        try:
            yield admission
        finally:
            self._settle(args=[*quotas, submit, admission.job, admission.items, JOB_S])


def _refuse(token: Token, quota: str = "", wait_s: str = "") -> None:
    if quota == "jobs":
        raise HttpError(
            429,
            "quota",
            "Quota used up",
            f"Token {token.name} has {token.active_jobs} active jobs, which is its limit: "
            "wait until a job ends, or cancel a job.",
            headers={"Retry-After": "5"},
        )
    if quota == "items":
        seconds = math.ceil(float(wait_s))
        raise HttpError(
            429,
            "quota",
            "Quota used up",
            f"Token {token.name} may submit {token.items_per_minute} items per minute: try again in {seconds} s.",
            headers={"Retry-After": str(seconds)},
        )
