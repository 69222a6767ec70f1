"""`apss-cp serve` in a real browser: the spec is edited and planned again, and nothing is said on the console.

Needs what tests/real/browsing.py needs; screenshots go to the folder that APSS_CP_SCREENSHOTS names, if any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.browsing import WIDTHS, browser, needs_chromium, photographed
from tests.support.served import SPEC, Server, served_command

pytestmark = needs_chromium
__all__ = ["browser"]

AUDIT = (Path(__file__).parent / "audited.js").read_text(encoding="utf-8")
PLANNED = re.compile("Planned and proven")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    spec = tmp_path_factory.mktemp("serve") / "small.yaml"
    spec.write_text(SPEC, encoding="utf-8")
    with served_command(str(spec), "--time-limit", "60") as started:
        yield started


def opened(browser: Any, server: Server, width: int = 1400, scheme: str = "light") -> tuple[Any, list[str]]:
    """The page once it has planned, and the list that its errors and its requests to others go to."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    own = (server.address, "data:", "blob:")
    page.on("request", lambda request: told.append(request.url) if not request.url.startswith(own) else 0)
    page.goto(server.address)
    page.locator("html[data-ready]").wait_for(timeout=30_000)
    return page, told


def answer(page: Any) -> Any:
    """The frame of the answer, once its script has run."""
    frame = page.frame_locator("#answer")
    frame.locator("html[data-ready]").wait_for(timeout=30_000)
    return frame


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_spec_is_edited_and_planned_again(browser: Any, server: Server, width: int, scheme: str) -> None:
    page, told = opened(browser, server, width, scheme)
    before = answer(page).locator("h1").inner_text()
    assert "8" in before
    page.locator("#spec").fill(SPEC.replace("num_gpus: 8", "num_gpus: 16"))
    page.locator("#plan").click()
    page.locator("#said").get_by_text(PLANNED).wait_for(timeout=30_000)
    page.frame_locator("#answer").locator("h1", has_text="16").wait_for(timeout=30_000)
    answer(page).locator("#pick input[name=versus]").first.check()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    photographed(page, f"serve-{width}-{scheme}")
    assert page.evaluate(AUDIT) == []
    assert told == []


def test_mistakes_are_shown_beside_the_spec_all_at_once(browser: Any, server: Server) -> None:
    page, told = opened(browser, server)
    answer(page)
    wrong = SPEC.replace("num_gpus: 8", "num_gpus: 7").replace("llama2-7b", "llama9-7b")
    page.locator("#spec").fill(wrong)
    page.keyboard.press("Control+Enter")
    items = page.locator("#troubles li")
    items.first.wait_for(timeout=30_000)
    assert items.count() == 2
    assert "did you mean" in items.first.inner_text()
    items.nth(1).locator("button").click()
    at = wrong.index("num_gpus")
    assert page.evaluate("document.activeElement.selectionStart") == at
    photographed(page, "serve-troubles")
    assert page.evaluate(AUDIT) == []
    page.locator("#spec").fill(SPEC)
    page.locator("#plan").click()
    page.locator("#said").get_by_text(PLANNED).wait_for(timeout=30_000)
    assert not page.locator("#troubles").is_visible()
    assert told == []


def test_no_plan_is_an_answer_with_reasons(browser: Any, server: Server) -> None:
    page, told = opened(browser, server, 400)
    answer(page)
    page.locator("#spec").fill(SPEC.replace("llama2-7b", "llama2-70b"))
    page.locator("#plan").click()
    page.locator("#said").get_by_text("There is no plan").wait_for(timeout=60_000)
    page.frame_locator("#answer").get_by_text("Why there is no plan").first.wait_for(timeout=30_000)
    photographed(page, "serve-no-plan")
    assert told == []


def test_a_spec_is_saved_and_a_reload_keeps_the_one_planned(browser: Any, server: Server, tmp_path: Path) -> None:
    page, told = opened(browser, server)
    answer(page)
    changed = SPEC.replace("global_batch_size: 16", "global_batch_size: 32")
    page.locator("#spec").fill(changed)
    with page.expect_download() as waiting:
        page.locator("#save").click()
    assert waiting.value.suggested_filename == "small.yaml"
    waiting.value.save_as(tmp_path / "saved.yaml")
    assert (tmp_path / "saved.yaml").read_text(encoding="utf-8") == changed
    page.locator("#plan").click()
    page.locator("#said").get_by_text(PLANNED).wait_for(timeout=30_000)
    page.reload()
    assert page.locator("#spec").input_value() == changed
    answer(page)
    with page.expect_download() as waiting:
        page.frame_locator("#answer").locator("#save-json").click()
    assert waiting.value.suggested_filename.endswith(".json")
    assert told == []


def test_a_plan_is_stopped(browser: Any, server: Server) -> None:
    page, told = opened(browser, server)
    answer(page)
    page.locator("#spec").fill(
        SPEC.replace("num_gpus: 8, chips: a800", "num_gpus: 2048, chips: {a800: 2048, h800: 2048}")
    )
    page.locator("#plan").click()
    page.locator("#stop").click()
    page.locator("#plan:enabled").wait_for(timeout=30_000)
    page.locator("#spec").fill(SPEC)
    page.locator("#plan").click()
    page.locator("#said").get_by_text(PLANNED).wait_for(timeout=30_000)
    assert told == []


def test_a_plan_that_is_made_says_how_far_it_is_in_chinese(browser: Any, tmp_path: Path) -> None:
    spec = tmp_path / "large.yaml"
    chips = ", ".join(f"{name}: 16384" for name in ("a800", "h800", "h100", "h200"))  # they take a minute or more
    spec.write_text(SPEC.replace("num_gpus: 8, chips: a800", f"num_gpus: 16384, chips: {{{chips}}}"))
    with served_command(str(spec), "--lang", "zh") as started:
        page, told = opened(browser, started)
        page.locator("#said").get_by_text(re.compile("正在规划：[0-9]+ s；.*(候选|证明|最好)")).wait_for(timeout=30_000)
        photographed(page, "serve-progress-zh")
        page.locator("#stop", has_text="停止").click()
        page.locator("#stop", has_text="立即停止").wait_for(
            state="attached", timeout=30_000
        )  # hidden once it has ended
        page.locator("#plan:enabled").wait_for(timeout=30_000)
        assert not re.search("[A-Za-z]{4,}", page.locator("#said").inner_text())
        assert page.evaluate(AUDIT) == []
        assert told == []


def test_the_answer_cannot_reach_the_server(browser: Any, server: Server) -> None:
    """Even its own address is another origin to it, and its policy lets it ask nobody."""
    page, _ = opened(browser, server)
    answer(page)
    inside = next(frame for frame in page.frames if "/answer/" in frame.url)
    assert inside.evaluate("self.origin") == "null"
    asked = "fetch('../stop', {method: 'POST', headers: {'Content-Type': 'application/yaml'}}).then(() => 1, () => 0)"
    assert inside.evaluate(asked) == 0
    assert inside.evaluate("(() => { try { return parent.document.title } catch { return null } })()") is None


def test_another_site_gets_nothing_from_the_page(browser: Any, server: Server) -> None:
    """A page of another origin that even knows the address can neither read it, nor plan, nor show it in a frame."""
    page = browser.new_page()
    page.route("http://elsewhere.test/", lambda route: route.fulfill(body="<html></html>", content_type="text/html"))
    page.goto("http://elsewhere.test/")
    asked = f"fetch({server.address!r}).then(() => 1, () => 0)"
    assert page.evaluate(asked) == 0
    count = json.loads(server.plan(SPEC).body)["answer"]
    body = f"method: 'POST', mode: 'no-cors', body: {SPEC!r}, headers: {{'Content-Type': 'text/plain'}}"
    page.evaluate(f"fetch({server.address + 'plan'!r}, {{{body}}}).then(() => 1, () => 0)")
    assert json.loads(server.plan(SPEC).body)["answer"] == count + 1  # it was not planned in between
    framed = page.evaluate(
        f"""new Promise(done => {{ const f = document.createElement('iframe'); f.src = {server.address!r};
        f.onload = () => {{ try {{ done(f.contentDocument.title) }} catch {{ done(null) }} }};
        document.body.append(f) }})"""
    )
    assert not framed
