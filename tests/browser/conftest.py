"""A browser on the real stack: web, workers and Redis run as processes, which the tests of this folder share."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser.stand import Stand
from tests.conftest import ROOT, without_settings
from tests.support.programs import PATIENCE_S, Programs
from tests.support.redis_server import RedisServer

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if not found:
        pytest.skip("Chromium is not installed on this machine. Install it to run the tests of the pages.")
    return found


@pytest.fixture
def browser(chromium: str) -> Iterator[Browser]:
    """A browser for each test.

    While Playwright runs, its thread has an event loop, and a test could not start a second loop in the thread.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def stand(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    assert chromium, "without a browser no process is started"
    folder = tmp_path_factory.mktemp("stand")
    with without_settings(), RedisServer(folder) as redis, Programs(ROOT, folder) as programs:
        stand = Stand(programs, redis, folder)
        stand.start()
        yield stand
        stand.stop()


@pytest.fixture
def context(browser: Browser, stand: Stand) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=stand.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(1000 * PATIENCE_S)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that fails the test on an error of a script and on a violation of the page's security policy."""
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
    yield page
    assert not wrong
