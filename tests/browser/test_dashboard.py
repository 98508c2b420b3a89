"""The dashboard as people use it: jobs are submitted from the form, watched, found to fail, cancelled and retried."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tasks.connections import connect
from tasks.deployment_benchmarks.figure_history import FigureHistory, FigureOfRun
from tasks.deployment_benchmarks.run_history import Run, RunHistory
from tasks.measurement.noise import band, has_regressed
from tasks.measurement.spread import Spread
from tasks.worker_registry import Gpu, Registry, Worker
from tests.browser.stand import Stand
from tests.support.ports import free_port
from tests.support.programs import PATIENCE_S
from web import tokens

expect.set_options(timeout=1000 * PATIENCE_S)

LONG = {"cost_s": 0.2, "batch_items": 1}
PACE = "Chart.getChart('pace').getDatasetMeta(0).data"
FAINT = Path(__file__).with_name("faint.js")


def done(page: Page) -> int:
    """Return the number of finished items that the page shows."""
    text = page.locator("#tiles .tile", has_text="Done").locator(".note").inner_text()
    return int(text.split(" of ")[0].replace(",", ""))


def test_a_job_from_the_form_progresses_shows_failures_and_is_retried(page: Page) -> None:
    page.goto("/submit")
    page.get_by_role("tab", name="Simulated").click()
    page.get_by_role("button", name="Submit", exact=True).click()
    page.wait_for_url(re.compile(r"/jobs/[0-9a-f]{32}$"))
    expect(page.locator("#head .word")).to_have_text(re.compile("running|queued"))
    expect(page.locator("#tiles")).to_contain_text(re.compile(r"\b[1-9]\d* of 24"))
    first = done(page)
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    page.wait_for_function(
        "first => parseInt(document.querySelector('#tiles .tile .note').textContent) > first", arg=first
    )
    failure = page.locator(".failure")
    expect(failure).to_contain_text("simulated_failure")
    expect(failure).to_contain_text("This item was told to fail.")
    expect(page.locator("#head .word")).to_have_text("done")
    expect(failure).to_contain_text("3 items")
    failure.get_by_role("button", name="Show items").click()
    expect(page.locator("#items tbody tr")).to_have_count(3)
    page.get_by_label("Search").fill("item-13")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#items tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Retry failed").click()
    expect(page.locator("#said")).to_have_text("3 items run again.")
    expect(page.locator("#head")).to_contain_text("retried 1 time")
    expect(page.locator("#head .word")).to_have_text("done")


def test_a_job_is_cancelled_by_keyboard_and_only_after_asking(page: Page, stand: Stand) -> None:
    job = stand.submit(*({"x": x} for x in range(2000)), spec=LONG)
    page.goto(f"/jobs/{job}")
    cancel = page.get_by_role("button", name="Cancel")
    cancel.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Cancel this job?")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).not_to_be_visible()
    assert stand.ask("GET", f"/v1/jobs/{job}")["state"] != "cancelled"
    expect(cancel).to_be_enabled()  # the page has handled the answer
    cancel.press("Enter")
    page.get_by_role("button", name="Cancel it").press("Enter")
    expect(page.locator("#head .word")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Retry failed")).to_have_count(0)  # the server would refuse a retry
    assert stand.ask("GET", f"/v1/jobs/{job}")["state"] == "cancelled"


def test_an_invalid_request_is_rejected_with_its_field(page: Page) -> None:
    page.goto("/submit#simulated")
    area = page.get_by_label("Request, sent to /v1/jobs").locator("visible=true")
    area.fill('{"kind": "simulated"')
    area.press("Control+Enter")
    expect(page.locator(".said:visible")).to_contain_text("Invalid JSON")
    area.fill(json.dumps({"kind": "simulated", "items": [{"x": 1}], "spec": {"cost_s": -1}}))
    area.press("Control+Enter")
    expect(page.locator(".said:visible b")).to_have_text("spec.cost_s")
    assert page.evaluate("() => getSelection().toString()") == '"cost_s"', "the wrong field is selected"
    assert page.url.endswith("/submit#simulated")
    page.get_by_role("button", name="Back to the example").locator("visible=true").click()
    expect(area).to_have_value(re.compile("item-24"))


def test_the_overview_is_live_and_reconnects_after_the_server_was_away(page: Page, stand: Stand) -> None:
    page.goto("/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("#devices .card")).to_have_count(2)
    job = stand.submit(*({"x": x} for x in range(2000)), spec=LONG, metadata={"name": "<b>night</b>"})
    row = page.locator(f"#jobs a[href='/jobs/{job}']")
    expect(row).to_contain_text("<b>night</b>")  # the client's name of the job, shown as text
    expect(row).to_contain_text("running")
    expect(page.locator("#devices .card").first).to_contain_text("busy")
    page.wait_for_function(f"() => {PACE}.length > 2")
    assert page.evaluate(f"() => {PACE}.every((point) => !point.options.radius)"), "a line without rings"
    before = row.locator(".done").inner_text()
    expect(row.locator(".done")).not_to_have_text(before)
    row.focus()
    stand.stop_web()
    expect(page.locator("#banner")).to_contain_text("reconnecting")
    expect(page.locator("#connection")).to_have_attribute("data-state", "away")
    stand.start_web()
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("#banner")).to_have_text("Reconnected.")
    assert row.evaluate("node => node === document.activeElement"), "the row keeps the focus"
    stand.ask("DELETE", f"/v1/jobs/{job}")
    expect(row).to_contain_text("cancelled")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job}")


def test_a_jobs_page_shows_that_redis_is_away_and_that_it_is_back(page: Page, stand: Stand) -> None:
    job = stand.submit(*({"x": x} for x in range(2000)), spec=LONG)
    page.goto(f"/jobs/{job}")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    stand.redis.stop()
    expect(page.locator("#banner")).to_contain_text("does not answer")
    stand.redis.start()
    expect(page.locator("#banner")).to_have_text("Reconnected.")
    first = done(page)
    page.wait_for_function(
        "first => parseInt(document.querySelector('#tiles .tile .note').textContent) > first", arg=first
    )
    stand.ask("DELETE", f"/v1/jobs/{job}")


def test_a_search_continues_until_an_item_is_found(page: Page, stand: Stand) -> None:
    items = [{"x": 91, "id": f"row-{number}"} for number in range(21_000)]
    job = stand.submit(*items, {"x": 92, "id": "needle"}, spec={"cost_s": 0, "cacheable": True})
    page.goto(f"/jobs/{job}")
    expect(page.locator("#head .word")).to_have_text("done")
    expect(page.locator("#items tbody tr")).to_have_count(25)
    page.get_by_label("Search").fill("needle")
    page.get_by_label("Search").press("Enter")
    expect(page.locator("#items tbody tr")).to_have_count(1)
    expect(page.locator("#found")).to_have_text("1 item found.")
    expect(page.get_by_role("button", name="Load more")).not_to_be_visible()


def test_a_rollout_page_keeps_polling_after_a_failed_request(page: Page, stand: Stand) -> None:
    asked = {
        "prompts": [{"prompt": "2 + 3?", "reference": "5"}], "simulated": {"generate_s": 0.05},
        "sampling": {"n": 2, "temperature": 1.0}, "train_batch_size": 4, "max_queue_size": 8,
    }  # fmt: skip
    rollout = stand.ask("POST", "/v1/rollouts", asked)["id"]
    page.goto(f"/jobs/{rollout}")
    expect(page.locator("#special")).to_contain_text(
        "100 % of 8"
    )  # the queue is full and no trainer takes samples, so there is no event
    page.route("**/v1/rollouts/*", lambda route: route.abort())
    with page.expect_event("requestfailed"):
        pass
    page.unroute("**/v1/rollouts/*")
    with page.expect_response("**/v1/rollouts/*/batches"):
        pass
    stand.ask("DELETE", f"/v1/jobs/{rollout}")


def test_long_names_leave_room_for_the_other_columns(page: Page, stand: Stand) -> None:
    name = "<i>" + "a-name-without-end-" * 40
    items = [{"x": 1, "id": name[:200], "group_id": name[:200]}, {"x": 2, "id": name[:199], "fail": True}]
    job = stand.submit(*items, spec={"cost_s": 0, "cacheable": True}, metadata={"name": name, "why": name})
    page.goto("/jobs")
    row = page.locator(f"#jobs a[href='/jobs/{job}']")
    expect(row).to_contain_text("1 failed")
    expect(row.locator(".why")).to_have_text("simulated_failure")  # the reason, without opening the job
    for part in (row.locator(".name .dim"), row.locator(".why")):
        assert is_within(part, row), "the kind and the reason are visible"
    row.click()
    expect(page.locator("[aria-current]")).to_have_text("Jobs")
    page.get_by_text("Metadata").click()
    expect(page.locator("#head pre")).to_contain_text('"why": "<i>a-name')
    table = page.locator("#items .table")
    expect(table.locator("tbody tr")).to_have_count(2)
    assert table.evaluate("node => node.scrollWidth - node.clientWidth") < 300, (
        "the outcome of an item is close to its id"
    )
    again = stand.submit(items[0], spec={"cost_s": 0, "cacheable": True})
    page.goto(f"/jobs/{again}")
    expect(page.locator("#items tbody tr")).to_contain_text("cached")
    expect(page.locator("#items tbody td").last).to_have_text("–")  # no worker ran it
    expect(page.locator("#latency")).to_contain_text("every answer came from the cache")


def is_within(inner: Locator, outer: Locator) -> bool:
    one, other = inner.bounding_box(), outer.bounding_box()
    assert one
    assert other
    return one["width"] > 0 and one["x"] >= other["x"] and one["x"] + one["width"] <= other["x"] + other["width"]


def test_a_benchmark_is_started_without_scrolling_sideways(page: Page) -> None:
    page.goto("/benchmarks")
    button = page.locator("#suites tr", has_text="quick").get_by_role("button", name="Run now")
    assert is_within(button, page.locator("#suites"))
    single = page.locator("#suites tr", has_text="rule_scoring").last
    expect(single).not_to_be_visible()
    page.locator("#suites summary").press("Enter")
    expect(single.get_by_role("button", name="Run now")).to_be_visible()


def remember(stand: Stand, figure: str, values: Sequence[float]) -> None:
    """Write nightly runs with this figure. The third last was disturbed; the newest is compared with earlier runs."""
    state = connect(stand.redis.url)
    history, figures = RunHistory(state), FigureHistory(state)
    for number, value in enumerate(values):
        at = history.now() - 86400 * (len(values) - number)
        run = Run(uuid4().hex, "quick", "schedule", "done", at, total=1, started_at=at, ended_at=at + 90)
        found = band(figures.earlier(figure, "here", run.id, at))
        measured = FigureOfRun(figure, "items/s", "higher", value, value, value, "here", number == len(values) - 3)
        if found:
            is_worse = not measured.is_disturbed and has_regressed(Spread(value, value, value), found, "higher")
            measured = replace(
                measured, usual=found.usual, low=found.low, high=found.high, is_regression=is_worse
            )  # fmt: skip
        history.add(replace(run, regressions=int(measured.is_regression)))
        figures.add(run.id, run.name, at, [measured])


DRAWN = """card => Chart.getChart(card.querySelector("canvas")).data.datasets.map(({label, data}) => [label, data])"""


def test_a_regression_is_named_and_drawn_with_its_usual_range(page: Page, stand: Stand) -> None:
    steady = [12_300.0, 12_400.0, 12_350.0, 12_280.0, 12_320.0, 12_410.0, 12_300.0, 12_360.0, 12_340.0]
    remember(stand, "rule_scoring/steady/items_s", [*steady, 6_000.0, 12_300.0, 12_350.0])
    remember(stand, "rule_scoring/slower/items_s", [*steady, 6_000.0, 12_300.0, 8_000.0])
    page.goto("/benchmarks")
    expect(page.locator("#regressions p")).to_have_count(1)
    expect(page.locator("#regressions")).to_contain_text(
        "rule_scoring/slower/items_s (quick) got worse: 8,000 items/s, 35 % below the usual 12,3"
    )
    expect(page.locator("#runs")).to_contain_text("1 figure")
    first = page.locator("#figures .card").first  # the regression comes first
    expect(first).to_contain_text("worse")
    drawn = dict(first.evaluate(DRAWN))
    assert drawn["value"] == [*steady, None, 12_300, 8_000]
    assert drawn["disturbed by other jobs"][9] == 6_000
    assert 8_000 < drawn["usual, low"][0] < 12_280 < 12_410 < drawn["usual, high"][0]
    steady_card = page.locator("#figures .card", has_text="rule_scoring/steady/items_s")
    expect(steady_card).not_to_contain_text("worse")
    expect(steady_card).to_contain_text("quick: 12,350 items/s, usually 1")
    page.set_viewport_size({"width": 390, "height": 844})
    button = page.locator("#suites tr", has_text="quick").get_by_role("button", name="Run now")
    assert is_within(button, page.locator("#suites"))


def test_gpus_are_shown_with_their_utilisation_and_memory(page: Page, stand: Stand) -> None:
    gpus = (Gpu("0", "GPU-a", 0.97, 74_310, 81_920), Gpu("1", "GPU-b", 0.0, 512, 81_920))
    worker = Worker(
        name="gpu.far.0", pool="device", node="far", host="far", pid=1, incarnation=uuid4().hex, launcher=uuid4().hex,
        queues=("gpu.far.0",), slot=0, devices=("0", "1"), state="stopping", gpus=gpus,
    )  # fmt: skip
    registry = Registry(connect(stand.redis.url), 10 * PATIENCE_S)  # no process renews the record
    registry.announce(worker)
    page.goto("/")
    card = page.locator("#devices .card", has_text="gpu.far.0")
    expect(card.locator(".meter")).to_have_text(
        [re.compile("Busy"), "GPU 097 %", "Memory72.6 of 80 GB", "GPU 10 %", "Memory0.5 of 80 GB"]
    )
    bars = [bar.bounding_box() for bar in card.locator(".bar").all()]
    assert len({(bar["x"], bar["width"]) for bar in bars if bar}) == 1, (
        "shares are compared by the length of their bars"
    )
    registry.leave(worker)


def test_the_overview_of_an_idle_stack_shows_no_trouble(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#health h1")).to_have_text("Healthy")
    expect(page.locator("#queues tr", has_text="benchmark")).to_contain_text("starts on demand")
    expect(page.locator("#queues [data-tone=bad]")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(browser: Browser, stand: Stand, scheme: Literal["light", "dark"]) -> None:
    job = stand.submit({"x": 1}, {"x": 2, "fail": True}, spec={"cost_s": 0})
    context = browser.new_context(base_url=stand.url, color_scheme=scheme)
    page = context.new_page()
    for path, ready in (("/", "#jobs .why"), (f"/jobs/{job}", "#items tbody tr"), ("/submit", "textarea")):
        page.goto(path)
        page.locator(ready).first.wait_for()
        assert page.evaluate(FAINT.read_text()) == [], f"{path} in {scheme}: less than 4.5 to 1"
    context.close()


def test_pages_fit_a_phone_and_go_dark(browser: Browser, stand: Stand) -> None:
    job = stand.submit({"x": 1, "id": "a" * 60}, {"x": 2, "fail": True}, spec={"cost_s": 0})
    context = browser.new_context(base_url=stand.url, viewport={"width": 390, "height": 844}, color_scheme="dark")
    page = context.new_page()
    for path, ready in (
        ("/", "#devices .card"), ("/jobs", "#jobs .job"), (f"/jobs/{job}", "#items tbody tr"), ("/submit", "textarea"),
        ("/benchmarks", "#runs"),
    ):  # fmt: skip
        page.goto(path)
        page.locator(ready).first.wait_for()
        width = page.evaluate("() => document.scrollingElement.scrollWidth")
        assert width <= 390, f"{path} scrolls sideways: {width}"
        ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", ground))) < 60, f"{path} is {ground}"
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    context.close()


def test_a_browser_gives_the_token_for_pages_data_and_streams(
    browser: Browser, stand: Stand, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_TOKENS_FILE", str(tmp_path / "tokens.jsonl"))
    assert tokens.main(["add", "somebody"]) == 0
    secret = capsys.readouterr().out.strip()
    port = free_port()
    web = stand.serve(port, ASSAY_TOKENS_FILE=str(tmp_path / "tokens.jsonl"))
    url = f"http://127.0.0.1:{port}"
    job = stand.submit({"x": 1})
    strange = browser.new_context(base_url=url)
    assert strange.request.get("/", headers={"Accept": "text/html"}).status == 401
    strange.close()
    known: BrowserContext = browser.new_context(base_url=url, http_credentials={"username": "me", "password": secret})
    page = known.new_page()
    page.goto(f"/jobs/{job}")
    expect(page.locator("#head .word")).to_have_text("done")
    page.goto("/")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    lines = {"Authorization": f"Bearer {secret}", "Content-Type": "application/x-ndjson"}
    reply = known.request.post("/v1/jobs?kind=simulated", headers=lines, data=b'{"x": 1}\n' * 200_001)
    large = reply.json()["id"]
    path = f"/v1/jobs/{large}/results"
    for address, header in ((url, '-H "Authorization: Bearer TOKEN" '), (stand.url, "")):
        page.goto(f"{address}/jobs/{large}")
        page.get_by_role("link", name="Download").click()
        expect(page.locator("#said")).to_contain_text(
            f'by a program: curl {header}-H "Accept: application/x-ndjson" {address}{path}'
        )
    stand.ask("DELETE", f"/v1/jobs/{large}")
    known.close()
    web.stop()
