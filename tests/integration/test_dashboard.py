"""The pages as they are sent: from this host only, without a script in them, and with examples that are right."""

import gzip
import json
import re
from pathlib import Path

import pytest

from tests.fleet import Fleet
from tests.integration.api import Api, is_problem
from web.dashboard.examples import examples

PAGES = ("/", "/jobs", f"/jobs/{'a' * 32}", "/submit", "/benchmarks")


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_from_this_host_only_and_has_no_script_in_it(api: Api, path: str) -> None:
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


def test_modules_import_only_what_is_there(api: Api) -> None:
    seen, wanted = set(), {f"{name}.js" for name in ("overview", "jobs", "job", "submit", "benchmarks")}
    while wanted - seen:
        name = sorted(wanted - seen)[0]
        seen.add(name)
        with api.client.get(f"/static/dashboard/{name}") as reply:
            assert reply.status_code == 200, name
            wanted |= set(re.findall(r'from "\./([a-z]+\.js)"', reply.text))


def test_the_chart_library_is_sent_packed_and_kept(api: Api) -> None:
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
def test_a_page_of_what_is_no_job_is_404(api: Api, job: str) -> None:
    reply = api.client.get(f"/jobs/{job}")
    assert is_problem(reply, 404)


@pytest.mark.parametrize("example", examples("development"), ids=lambda each: each["name"])
def test_every_example_is_accepted(fleet: Fleet, tmp_path: Path, example: dict[str, str]) -> None:
    model = tmp_path / "models" / "smollm2"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")  # nobody loads it: whether there is such a model is all that is asked here
    fleet.settings = fleet.settings.model_copy(update={"models_dir": tmp_path / "models", "storage_shared": True})
    reply = Api(fleet).client.post(example["path"], json=json.loads(example["body"]))
    assert reply.status_code in (200, 202), reply.text
