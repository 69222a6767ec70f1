"""Pages in a real browser: what the tests of each kind of page share.

Needs Playwright for Python and a Chromium (`chromium`, `chromium-browser` or `google-chrome` on the path); screenshots
go to the folder that APSS_CP_SCREENSHOTS names, if any.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sync = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")
WIDTHS = (400, 1400)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield started
        started.close()


def opened(browser: Any, file: Path, width: int, scheme: str = "light") -> tuple[Any, list[str]]:
    """The page in a window of that width, and the list that its errors and requests go to."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))

    def dismissed(dialog: Any) -> None:
        told.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", dismissed)
    page.on(
        "request",
        lambda request: told.append(request.url) if not request.url.startswith(("file:", "data:", "blob:")) else 0,
    )
    page.goto(file.as_uri())
    page.locator("html[data-ready]").wait_for(timeout=30_000)
    return page, told


def assert_it_fits(page: Any, width: int) -> None:
    """Nothing stands outside the window, but for what scrolls by itself."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator("p, h1, h2, li, .tiles div, .track, figcaption").all()
    for box in (shape.bounding_box() for shape in boxes if shape.is_visible()):
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= width + 0.5)


def photographed(page: Any, name: str) -> None:
    """The whole page as a picture, where a folder for them is named."""
    if folder := os.environ.get("APSS_CP_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png", full_page=True)
