"""A browser for the tests of pages; the other tests here need none, nor what pages are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.dashboard.browsing import Open


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from tests.dashboard.browsing import CHROMIUM, PATIENCE, playwright

    playwright.expect.set_options(timeout=PATIENCE)
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens pages in a fresh profile; they complain of nothing and ask nobody but the dashboard."""
    from tests.dashboard.browsing import PATIENCE, Watched

    watched = Watched()
    contexts = []

    def open_page(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page: Page = context.new_page()
        watched.attach(page)
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert watched.complaints == []
    assert watched.hosts == {"127.0.0.1"}
