"""Drives Debian's headless Chromium, for the tests of the page. Nothing is downloaded."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.clients.install import installed

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
IMAGES = Path(__file__).parents[2] / "docs" / "images"
WITHIN_MS = 20_000
DESKTOP, PHONE, LARGE = (1100, 760), (390, 844), (1100, 1180)
REWRITES_PICTURES = bool(os.environ.get("REWRITE_SCREENSHOTS"))


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that ends with the block. The test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; .ci/run installs Debian's")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page of a browser, and what went wrong in it."""

    def __init__(self, browser: Any, url: str, *, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> None:
        width, height = size
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, timezone_id="UTC", locale="en-US"
        )
        self.context.set_default_timeout(WITHIN_MS)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self._hosts = ("http://127.0.0.1:", "http://localhost:")
        self.page.on("request", self._on_request)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._on_console)
        self.page.goto(url)

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((*self._hosts, "data:")):
            self.problems.append(f"it asks another host: {request.url}")

    def _on_console(self, message: Any) -> None:
        # A refused or failed request is noted too; the page shows these itself.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.problems.append(message.text)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def wait_for(self, selector: str, text: str) -> None:
        """Wait until an element that fits the selector has the text in it."""
        self.page.locator(selector, has_text=text).first.wait_for(state="attached")

    def violations(self) -> list[str]:
        """Return what axe finds wrong with the page: each rule, with the elements."""
        self.page.evaluate((installed() / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run().then(found => found.violations)")
        return [f"{one['id']}: {json.dumps([node['html'] for node in one['nodes']])}" for one in found]

    def is_as_wide_as_the_screen(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))

    def picture(self, name: str, selector: str = "") -> None:
        """Write a picture for docs/, of the window or of one element, if REWRITE_SCREENSHOTS is set."""
        if REWRITES_PICTURES:
            IMAGES.mkdir(exist_ok=True)
            shown = self.page.locator(selector) if selector else self.page
            shown.screenshot(path=str(IMAGES / f"{name}.png"))

    def close(self) -> None:
        """Close it; nothing may have gone wrong in it."""
        self.context.close()
        assert self.problems == []


@contextmanager
def tab(browser: Any, url: str, **options: Any) -> Iterator[Tab]:
    """A page that is closed with the block, and in which nothing may go wrong."""
    opened = Tab(browser, url, **options)
    try:
        yield opened
    except BaseException:
        opened.context.close()
        raise
    opened.close()
