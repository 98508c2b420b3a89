"""The API for tests: the real application on a real Redis, and workers that the test runs step by step."""

from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from tests.support.fleet import Fleet, Hand
from web.app import create_app


class Api:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.app = create_app(fleet.settings)
        self.client: FlaskClient = self.app.test_client()

    def submit(self, *items: dict[str, Any], query: str = "", **options: Any) -> TestResponse:
        body = {"kind": "simulated", "items": list(items)} | options
        return self.client.post(f"/v1/jobs{query}", json=body)

    def submitted(self, *items: dict[str, Any], **options: Any) -> str:
        """Submit a job, and return its id. The API must accept it."""
        reply = self.submit(*items, **options)
        assert reply.status_code in (200, 202), reply.text
        return str(reply.json["id"])

    def done(self, hand: Hand, *items: dict[str, Any], **options: Any) -> str:
        """Submit a job, run it, and return its id."""
        job = self.submitted(*items, **options)
        self.fleet.work(hand)
        return job


def is_problem(reply: TestResponse, status: int, field: str | None = None) -> bool:
    """Assert that the reply is a problem document of this status, about this field, whose detail is a sentence."""
    assert (reply.status_code, reply.mimetype) == (status, "application/problem+json"), reply.text
    assert reply.json["status"] == status
    assert reply.json["detail"].endswith("."), reply.json
    assert "Traceback" not in reply.text
    if field is not None:
        assert reply.json.get("field") == field, reply.json
    return True
