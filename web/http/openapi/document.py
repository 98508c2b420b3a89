"""The OpenAPI 3.1 document, generated from the routes, their descriptions, and the pydantic models of the wire."""

import re
from typing import Any

from flask import Flask
from openapi_pydantic import OpenAPI
from openapi_pydantic.util import PydanticSchema, construct_open_api_with_schema_class
from pydantic import BaseModel
from werkzeug.routing import Rule

from tasks.jobs.model import JobHead, JobRequest
from web.http.openapi.describe import Content, Description, description_of
from web.http.schemas import Problem
from web.jobs.schemas import JobByUrl

#: Version of the HTTP API.
VERSION = "1"
#: Blueprints with pages for people and tools, which are not part of the API.
UNLISTED = ("static", "dashboard", "charts", "docs")

_PROBLEMS = {
    400: "The body cannot be parsed.",
    401: "The token is missing or unknown.",
    403: "The request comes from a foreign site, or uses a host name that is not allowed.",
    404: "The resource does not exist, or has expired.",
    408: "The body did not arrive in time.",
    409: "The current state of the resource forbids the request.",
    413: "The body is too large, or has too many items.",
    415: "Unknown content type or encoding.",
    422: "The request is not valid; `field` names the field.",
    429: "A quota of the token is used up; `Retry-After` says when to try again.",
    503: "Redis is unavailable, or too many items wait; `Retry-After` says when to try again.",
}


def build(app: Flask) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for rule in app.url_map.iter_rules():
        if rule.endpoint.partition(".")[0] in UNLISTED:
            continue
        description = description_of(app.view_functions[rule.endpoint])
        assert description, f"{rule.endpoint} has no description: decorate it with @described"
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            path = re.sub(r"<(\w+)>", r"{\1}", rule.rule)
            paths.setdefault(path, {})[method.lower()] = _operation(rule, description)
    document = OpenAPI.model_validate(
        {
            "openapi": "3.1.1",
            "info": {
                "title": "Assay",
                "version": VERSION,
                "description": "Scores, judgements, inference shards and rollouts for RL post-training and evaluation.",
            },
            "paths": paths,
            "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
            "security": [{"bearer": []}, {}],
        }
    )
    made = construct_open_api_with_schema_class(document)
    return made.model_dump(mode="json", by_alias=True, exclude_none=True)


def _operation(rule: Rule, description: Description) -> dict[str, Any]:
    statuses = sorted({*description.errors, *(() if description.is_open else (401, 403, 503))})
    return {
        "operationId": rule.endpoint.replace(".", "_"),
        "summary": description.summary,
        "tags": [rule.endpoint.partition(".")[0]],
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in rule.arguments),
            *_query(description.query),
            *(
                {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
                for name, text in description.headers.items()
                if name != "Accept"  # OpenAPI states it by the content types of the responses
            ),
        ],
        **({"requestBody": _body()} if description.has_body else {}),
        **(
            {"requestBody": {"required": not description.may_lack_body, "content": dict([_content(description.body)])}}
            if description.body
            else {}
        ),
        "responses": {
            **{str(status): _response(status, contents) for status, contents in description.responses.items()},
            **{
                str(status): {
                    "description": _PROBLEMS[status],
                    "content": {"application/problem+json": {"schema": PydanticSchema(schema_class=Problem)}},
                }
                for status in statuses
            },
        },
        **({"security": []} if description.is_open else {}),
    }


def _query(model: type[BaseModel]) -> list[dict[str, Any]]:
    properties = model.model_json_schema().get("properties", {})
    return [
        {"name": name, "in": "query", "description": each.pop("description", ""), "schema": each}
        for name, each in properties.items()
    ]


def _response(status: int, contents: tuple[Content, ...]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": {
            200: "OK",
            202: "Accepted",
            204: "The job has ended: no more events will follow.",
            503: "Not ready yet.",
        }[status]
    }
    if contents:
        response["content"] = dict(_content(each) for each in contents)
    if status == 202:
        response["headers"] = {"Location": {"description": "The job.", "schema": {"type": "string"}}}
    return response


def _content(content: Content) -> tuple[str, dict[str, Any]]:
    if isinstance(content, str):
        # For an event stream, a schema would describe each event, not the text.
        return content, {} if content == "text/event-stream" else {"schema": {"type": "string"}}
    return "application/json", {"schema": PydanticSchema(schema_class=content)}


def _body() -> dict[str, Any]:
    lines = {"type": "string", "description": "An item per line; the rest of the request is in the query."}
    return {
        "required": True,
        "description": "May be compressed: `Content-Encoding: gzip` or `zstd`.",
        "content": {
            "application/json": {
                "schema": {"anyOf": [PydanticSchema(schema_class=each) for each in (JobRequest, JobByUrl)]}
            },
            "application/x-ndjson": {"schema": lines},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["request", "items"],
                    "properties": {
                        "request": PydanticSchema(schema_class=JobHead),
                        "items": {"type": "string", "format": "binary", "description": "JSONL: an item per line."},
                    },
                },
                "encoding": {"request": {"contentType": "application/json"}},
            },
        },
    }
