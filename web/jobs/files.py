"""`/v1/jobs/{id}/files`: files that a job stored beside its outcomes, such as videos of episodes."""

import re

from flask import Blueprint, Response

from tasks.errors import StoredFileMissing
from web.http.http_error import HttpError
from web.http.openapi.describe import described
from web.jobs.views import find
from web.services import services

blueprint = Blueprint("files", __name__, url_prefix="/v1/jobs")

#: File names of the core; a request for any other name is answered with 404.
_NAME = re.compile(r"[0-9a-f]{32}\.([a-z0-9]{1,8})")
_TYPES = {"webp": "image/webp"}


@blueprint.get("/<job_id>/files/<name>")
@described(
    "Download a file of the job by the name in its result: the video of an episode.",
    {200: "image/webp"},
    errors=(404,),
)
def file(job_id: str, name: str) -> Response:
    job, matched = find(job_id), _NAME.fullmatch(name)
    try:
        if not matched:
            raise StoredFileMissing
        body = services().core.kept_file(job, name)
    except StoredFileMissing as error:
        detail = "The job has no file of this name; its results hold the names."
        raise HttpError(404, "unknown_file", "Unknown file", detail) from error
    return Response(body, mimetype=_TYPES.get(matched[1], "application/octet-stream"))
