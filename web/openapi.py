"""The OpenAPI 3.1 document, made from the routes, what each says of itself, and the pydantic models of the wire."""

import re
from typing import Any

from flask import Flask
from openapi_pydantic import OpenAPI
from openapi_pydantic.util import PydanticSchema, construct_open_api_with_schema_class
from pydantic import BaseModel
from werkzeug.routing import Rule

from tasks.jobs.model import JobHead, JobRequest
from web.description import Content, Description, description_of
from web.item_urls import JobByUrl
from web.schemas import Problem

#: Blueprints with routes for people and tools, which are not part of the API.
UNLISTED = ("static", "dashboard", "charts", "docs")

_PROBLEMS = {
    400: "The body cannot be read.",
    401: "The token is missing, or not known.",
    403: "Asked from another site, or under a foreign name.",
    404: "There is no such thing.",
    408: "The body did not come in time.",
    409: "The state of things forbids it.",
    413: "Too large, or too many.",
    415: "Unknown content type or encoding.",
    422: "The request breaks a rule; `field` says where.",
    429: "The token has used up what it may; `Retry-After` says when to come back.",
    503: "Redis is away, or too much waits; `Retry-After` says when to come back.",
}


def build(app: Flask, version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for rule in app.url_map.iter_rules():
        if rule.endpoint.partition(".")[0] in UNLISTED:
            continue
        description = description_of(app.view_functions[rule.endpoint])
        assert description, f"{rule.endpoint} says nothing of itself: give it @described"
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            path = re.sub(r"<(\w+)>", r"{\1}", rule.rule)
            paths.setdefault(path, {})[method.lower()] = _operation(rule, description)
    document = OpenAPI.model_validate(
        {
            "openapi": "3.1.1",
            "info": {
                "title": "Assay",
                "version": version,
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
                if name != "Accept"  # which OpenAPI leaves to the answers' content types
            ),
        ],
        **({"requestBody": _body()} if description.has_body else {}),
        **(
            {"requestBody": {"required": not description.may_lack_body, "content": dict([_content(description.body)])}}
            if description.body
            else {}
        ),
        "responses": {
            **{str(status): _answer(status, contents) for status, contents in description.answers.items()},
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


def _answer(status: int, contents: tuple[Content, ...]) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": {200: "OK", 202: "Accepted", 204: "Nothing more will come.", 503: "Not yet."}[status]
    }
    if contents:
        answer["content"] = dict(_content(each) for each in contents)
    if status == 202:
        answer["headers"] = {"Location": {"description": "The job.", "schema": {"type": "string"}}}
    return answer


def _content(content: Content) -> tuple[str, dict[str, Any]]:
    if isinstance(content, str):
        # Of a stream of events a schema would describe each of them, not the text.
        return content, {} if content == "text/event-stream" else {"schema": {"type": "string"}}
    return "application/json", {"schema": PydanticSchema(schema_class=content)}


def _body() -> dict[str, Any]:
    lines = {"type": "string", "description": "One item a line; the rest of the request is in the query."}
    return {
        "required": True,
        "description": "May be packed: `Content-Encoding: gzip` or `zstd`.",
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
                        "items": {"type": "string", "format": "binary", "description": "JSONL: one item a line."},
                    },
                },
                "encoding": {"request": {"contentType": "application/json"}},
            },
        },
    }
