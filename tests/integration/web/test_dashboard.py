"""Pages of the dashboard: load from this host only, contain no inline script, and offer examples that are valid."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.integration.api import Api, is_problem
from tests.support.fleet import Fleet
from web.dashboard.examples import examples

PAGES = ("/", "/jobs", f"/jobs/{'a' * 32}", "/submit", "/benchmarks")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_from_this_host_only_and_has_no_inline_script(api: Api, path: str) -> None:
    reply = api.client.get(path)
    assert (reply.status_code, reply.mimetype) == (200, "text/html")
    assert "'unsafe-inline'" not in reply.headers["Content-Security-Policy"].split("style-src")[0]
    loaded = re.findall(r"<(?:script|link)[^>]*(?:src|href)=\"([^\"]+)\"", reply.text)
    assert loaded
    assert not re.search(r"<script(?![^>]*src=)", reply.text)
    assert not re.search(r"\son[a-z]+=", reply.text)
    for asset in loaded:
        assert asset.startswith("/")
        with api.client.get(asset) as answer:
            assert answer.status_code == 200, asset


def test_modules_import_only_existing_modules(api: Api) -> None:
    seen, wanted = set(), {f"{name}.js" for name in ("overview", "jobs", "job", "submit", "benchmarks")}
    while wanted - seen:
        name = sorted(wanted - seen)[0]
        seen.add(name)
        with api.client.get(f"/static/dashboard/{name}") as reply:
            assert reply.status_code == 200, name
            wanted |= set(re.findall(r'from "\./([a-z]+\.js)"', reply.text))


def test_the_chart_library_is_sent_compressed_and_cached(api: Api) -> None:
    (path,) = re.findall(r'src="(/charts/[^"]+)"', api.client.get("/").text)
    packed = api.client.get(path, headers={"Accept-Encoding": "gzip, br"})
    assert "immutable" in packed.headers["Cache-Control"]
    assert packed.headers["Content-Encoding"] == "gzip"
    assert len(packed.data) < 200_000
    plain = api.client.get(path, headers={"Accept-Encoding": "identity"})
    assert gzip.decompress(packed.data) == plain.data
    assert b"Chart.js v4" in plain.data[:200]
    assert not re.search(rb"\beval\(|new Function\(", plain.data), "which the page's policy would forbid"
    for other in ("chart.0123456789ab.js", "..%2fchart.js", "chartkick.js"):
        assert is_problem(api.client.get(f"/charts/{other}"), 404)


@pytest.mark.parametrize("job", ["nope", "<script>", "A" * 32, "0" * 31])
def test_the_page_of_an_invalid_job_id_is_404(api: Api, job: str) -> None:
    reply = api.client.get(f"/jobs/{job}")
    assert is_problem(reply, 404)


BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nope", "The page /nope does not exist."),
        ("/jobs/", "The page /jobs/ does not exist."),
        ("/<script>alert(1)</script>", "The page /&lt;script&gt;"),
        ("/jobs/nope", "does not exist, or has expired"),
        ("/v1x", "The page /v1x does not exist."),
    ],
)
def test_a_browser_at_an_unknown_address_gets_a_page_with_a_link_back(api: Api, path: str, said: str) -> None:
    reply = api.client.get(path, headers=BROWSER)
    assert (reply.status_code, reply.mimetype) == (404, "text/html")
    assert said in reply.text
    assert '<a href="/">Back to the overview</a>' in reply.text
    assert "<script" not in reply.text
    assert "connecting" not in reply.text, "nothing on it connects"
    assert api.client.head(path, headers=BROWSER).mimetype == "text/html"
    for accept in ("*/*", "application/json", "application/json, text/html;q=0.5"):
        assert is_problem(api.client.get(path, headers={"Accept": accept}), 404)
    assert api.client.post(path, headers=BROWSER).mimetype == "application/problem+json"


@pytest.mark.parametrize("path", ["/v1", "/v1/nope", "/v1/jobs/nope", "/static/nope.js", "/charts/nope.js"])
def test_the_api_and_assets_answer_browsers_and_programs_alike(api: Api, path: str) -> None:
    assert is_problem(api.client.get(path, headers=BROWSER), 404)


@pytest.mark.parametrize("example", examples("development"), ids=lambda each: each["name"])
def test_every_example_is_accepted(fleet: Fleet, tmp_path: Path, example: dict[str, str]) -> None:
    model = tmp_path / "models" / "smollm2"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")  # the model is not loaded: the server checks only that its folder exists
    fleet.settings = fleet.settings.model_copy(update={"models_dir": tmp_path / "models", "storage_shared": True})
    reply = Api(fleet).client.post(example["path"], json=json.loads(example["body"]))
    assert reply.status_code in (200, 202), reply.text
