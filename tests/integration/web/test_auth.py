"""Authentication and authorization: tokens, quotas, host names, origins, and the security headers of every answer."""

import base64
import hashlib
from pathlib import Path

import pytest

from config import keys
from config.settings import SettingsError
from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet
from web import tokens

JOB = {"kind": "simulated", "items": [{"x": 1}]}


def token(
    path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *options: str
) -> str:
    """Make a token with the command that an administrator uses."""
    monkeypatch.setenv("ASSAY_TOKENS_FILE", str(path))
    assert tokens.main(["add", name, *options]) == 0
    return capsys.readouterr().out.strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.jsonl"


@pytest.fixture
def secret(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    return token(path, "trainer", capsys, monkeypatch)


@pytest.fixture
def guarded(fleet: Fleet, path: Path, secret: str) -> Api:
    assert secret
    fleet.settings = fleet.settings.model_copy(update={"tokens_file": path})
    return Api(fleet)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_valid_token_is_required(guarded: Api, secret: str) -> None:
    assert guarded.client.get("/v1/jobs", headers=bearer(secret)).status_code == 200
    for headers in ({}, bearer("wrong"), bearer(""), {"Authorization": "Bearer"}, {"Authorization": secret}):
        reply = guarded.client.get("/v1/jobs", headers=headers)
        assert is_problem(reply, 401, "Authorization")
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")


def test_only_health_and_readiness_need_no_token(guarded: Api) -> None:
    assert guarded.client.get("/health").text == "ok"
    assert guarded.client.get("/ready").json["ready"] is False
    for path in ("/", "/docs", "/openapi.json", "/static/docs.js", "/v1/queues", "/nothing/here"):
        assert is_problem(guarded.client.get(path), 401)


def test_a_browser_gives_the_token_as_a_password(guarded: Api, secret: str) -> None:
    asked = guarded.client.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert asked.headers["WWW-Authenticate"].startswith("Basic")
    part = guarded.client.get("/static/dashboard/style.css", headers={"Accept": "text/css,*/*;q=0.1"})
    assert [line.split()[0] for line in part.headers.getlist("WWW-Authenticate")] == ["Bearer", "Basic"]
    given = base64.b64encode(f"me:{secret}".encode()).decode()
    assert guarded.client.get("/", headers={"Authorization": f"Basic {given}"}).status_code == 200


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def test_a_token_may_be_the_user_part_of_a_url(guarded: Api, secret: str) -> None:
    """http://TOKEN@host is sent as a user without a password, http://any:TOKEN@host with the token as the password."""
    for headers in (basic(secret, ""), basic("any", secret)):
        assert guarded.client.get("/v1/jobs", headers=headers).status_code == 200
    for headers in (basic(secret, "wrong"), basic("wrong", ""), basic("", ""), {"Authorization": "Basic %%%"}):
        assert is_problem(guarded.client.get("/v1/jobs", headers=headers), 401)


def test_the_pi0_reward_servers_clients_may_have_the_token_in_the_query(guarded: Api, secret: str) -> None:
    assert guarded.client.get(f"/pool_status?token={secret}").status_code == 200
    assert is_problem(guarded.client.post(f"/score?token={secret}", json={}), 400, "responses")
    assert is_problem(guarded.client.get("/pool_status?token=wrong"), 401)
    assert is_problem(guarded.client.get(f"/pool_status?token={secret}&x=1"), 400, "x")


def test_only_endpoints_for_trainers_accept_the_token_in_the_query(guarded: Api, secret: str) -> None:
    for path in ("/get_reward", "/rm", "/verify"):
        assert is_problem(guarded.client.post(f"{path}?token={secret}", json={}), 422, "reward")
        for query in ("", "?token=", "?token=wrong", f"?tokem={secret}"):
            reply = guarded.client.post(path + query, json={})
            assert is_problem(reply, 401)
            assert "?token=TOKEN" in reply.json["detail"]
            assert secret not in reply.text
    for path in ("/v1/jobs", "/v1/rewards", "/", "/rm/", "/nothing"):
        assert is_problem(guarded.client.get(f"{path}?token={secret}"), 401)
    # A header takes precedence over the query, and a token in the query authorizes no page of a foreign site.
    assert is_problem(guarded.client.post(f"/rm?token={secret}", json={}, headers=bearer("wrong")), 401)
    assert is_problem(
        guarded.client.post(f"/rm?token={secret}", json={}, headers={"Sec-Fetch-Site": "cross-site"}), 403
    )
    repeated = guarded.client.post(f"/rm?token={secret}&token={secret}", json={})
    assert is_problem(repeated, 422, "token")
    assert secret not in repeated.text


def test_trainers_have_the_quotas_of_their_token(
    fleet: Fleet, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rewards = tmp_path / "rewards.toml"
    rewards.write_text('[rewards.a.spec]\nscorers = [{name = "numeric_match"}]\n')
    guest = token(path, "guest", capsys, monkeypatch, "--items-per-minute", "60")
    update = {"tokens_file": path, "rewards_file": rewards, "max_wait_s": 0.1}
    fleet.settings = fleet.settings.model_copy(update=update)
    api = Api(fleet)
    assert api.client.post(f"/get_reward?token={guest}", json={"query": ["5"] * 1260}).status_code == 200
    (job,) = api.client.get("/v1/jobs", headers=bearer(guest)).json["jobs"]
    assert fleet.core.state.hget(keys.job(job["id"]), "token") == "guest", (
        "the cost of its judge calls is recorded under the token"
    )
    reply = api.client.post(f"/get_reward?token={guest}", json={"query": ["5"]})
    assert is_problem(reply, 429)
    assert 1100 < int(reply.headers["Retry-After"]) <= 1202, "1,260 items, of which 60 a minute are allowed"


def test_a_token_is_kept_as_a_hash_only(path: Path, secret: str) -> None:
    text = path.read_text()
    assert secret not in text
    assert hashlib.sha256(secret.encode()).hexdigest() in text


def test_tokens_are_added_and_removed_without_a_restart(
    guarded: Api, secret: str, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = token(path, "second", capsys, monkeypatch)
    assert guarded.client.get("/v1/jobs", headers=bearer(second)).status_code == 200
    assert tokens.main(["remove", "trainer"]) == 0
    assert is_problem(guarded.client.get("/v1/jobs", headers=bearer(secret)), 401)
    assert tokens.main(["list"]) == 0
    assert capsys.readouterr().out == "second\n"
    assert tokens.main(["add", "second"]) == tokens.main(["remove", "nobody"]) == tokens.main(["add", "a b"]) == 1


def test_an_invalid_line_in_the_file_leaves_the_other_tokens_valid(guarded: Api, secret: str, path: Path) -> None:
    path.write_text(path.read_text() + "{oops\n")
    assert guarded.client.get("/v1/jobs", headers=bearer(secret)).status_code == 200


@pytest.mark.parametrize("text", ["", "{oops\n", '{"name": "a", "sha256": "short"}\n'])
def test_the_server_does_not_start_with_an_unusable_tokens_file(fleet: Fleet, path: Path, text: str) -> None:
    path.write_text(text)
    fleet.settings = fleet.settings.model_copy(update={"tokens_file": path})
    with pytest.raises(SettingsError, match="ASSAY_TOKENS_FILE"):
        Api(fleet)


def test_idempotency_keys_of_different_tokens_do_not_collide(
    guarded: Api, secret: str, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = token(path, "second", capsys, monkeypatch)
    ids = {
        guarded.client.post("/v1/jobs", json=JOB, headers=bearer(each) | {"Idempotency-Key": "k"}).json["id"]
        for each in (secret, second, secret)
    }
    assert len(ids) == 2


def test_a_token_has_a_limit_of_active_jobs(
    guarded: Api, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = bearer(token(path, "guest", capsys, monkeypatch, "--active-jobs", "2"))
    first, _ = (guarded.client.post("/v1/jobs", json=JOB, headers=headers).json["id"] for _ in range(2))
    assert is_problem(guarded.client.post("/v1/jobs", json={"kind": "nope", "items": [{}]}, headers=headers), 429)
    guarded.client.delete(f"/v1/jobs/{first}", headers=headers)
    # A submit that is refused for a different reason does not count.
    assert is_problem(guarded.client.post("/v1/jobs", json={"kind": "nope", "items": [{}]}, headers=headers), 422)
    assert guarded.client.post("/v1/jobs", json=JOB, headers=headers).status_code == 202
    assert guarded.client.post("/v1/jobs", json=JOB, headers=headers).headers["Retry-After"] == "5"


def test_a_token_has_a_limit_of_items_per_minute(
    guarded: Api, path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = bearer(token(path, "guest", capsys, monkeypatch, "--items-per-minute", "60"))
    large = {"kind": "simulated", "items": [{"x": 1}] * 1260}
    assert guarded.client.post("/v1/jobs", json=large, headers=headers).status_code == 202
    reply = guarded.client.post("/v1/jobs", json=JOB, headers=headers)
    assert is_problem(reply, 429)
    assert 1100 < int(reply.headers["Retry-After"]) <= 1202, "1,260 items, of which 60 a minute are allowed"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:6006", "127.0.0.1.evil.example", "localhost@evil"])
def test_without_tokens_only_loopback_names_are_served(api: Api, host: str) -> None:
    assert api.client.get("/v1/jobs", headers={"Host": host}).status_code in (400, 403)
    assert api.client.get("/health", headers={"Host": host}).status_code in (200, 400)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:6006", "[::1]:6006", "[::1]", "LOCALHOST"])
def test_without_tokens_loopback_names_are_served(api: Api, host: str) -> None:
    assert api.client.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_page_of_a_foreign_site_changes_nothing(api: Api, headers: dict[str, str]) -> None:
    job = api.submitted({"x": 1})
    assert is_problem(api.client.delete(f"/v1/jobs/{job}", headers=headers), 403)
    assert is_problem(api.client.post("/v1/jobs", json=JOB, headers=headers), 403)
    assert api.client.get(f"/v1/jobs/{job}").json["state"] == "queued"


def test_pages_of_this_site_may_change_jobs(api: Api) -> None:
    job = api.submitted({"x": 1})
    own = {"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost"}
    assert api.client.delete(f"/v1/jobs/{job}", headers=own).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/", "/docs", "/v1/jobs", "/nothing"])
def test_every_answer_has_the_security_headers(api: Api, path: str) -> None:
    headers = api.client.get(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert "default-src" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"


def test_the_docs_page_loads_from_this_host_only(api: Api) -> None:
    page = api.client.get("/docs").text
    assert "http" not in page.replace("<!doctype html>", "")
    for name in ("/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/static/docs.js"):
        assert name in page
        with api.client.get(name) as asset:
            assert asset.status_code == 200
    assert is_problem(api.client.get("/docs/..%2f..%2f__init__.py"), 404)
    assert is_problem(api.client.get("/static/..%2fapp.py"), 404)


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/jobs"), ("PATCH", "/v1/jobs/x"), ("GET", "/v1/jobs/x/retry")]
)
def test_a_wrong_method_is_405_and_lists_the_allowed_methods(api: Api, method: str, path: str) -> None:
    reply = api.client.open(path, method=method)
    assert is_problem(reply, 405)
    assert reply.headers["Allow"]
