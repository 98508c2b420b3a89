"""What a job kept beside its outcomes: videos of episodes."""

import re

from flask import Blueprint, Response

from tasks.errors import StoredFileMissing
from web.description import described
from web.jobs import find
from web.refusal import Refused
from web.services import services

blueprint = Blueprint("files", __name__, url_prefix="/v1/jobs")

#: As the core names them; whatever else is asked for cannot be one.
_NAME = re.compile(r"[0-9a-f]{32}\.([a-z0-9]{1,8})")
_TYPES = {"webp": "image/webp"}


@blueprint.get("/<job_id>/files/<name>")
@described(
    "A file of the job, by the name that a result has: the video of an episode.", {200: "image/webp"}, errors=(404,)
)
def file(job_id: str, name: str) -> Response:
    job, matched = find(job_id), _NAME.fullmatch(name)
    try:
        if not matched:
            raise StoredFileMissing
        body = services().core.kept_file(job, name)
    except StoredFileMissing as error:
        detail = "The job has no such file; its results name those it has."
        raise Refused(404, "unknown_file", "Unknown file", detail) from error
    return Response(body, mimetype=_TYPES.get(matched[1], "application/octet-stream"))
