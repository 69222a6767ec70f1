"""Reports in a real browser: no error, nothing wider than the window, the key texts visible, the script at work.

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

from tests.support.checkout import ROOT
from tests.support.command import run

sync = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path")

EXAMPLES = ROOT / "examples"
MARKUP = "<script>alert(1)</script>"
SPECS = {
    "solve": "model: llama2-70b\ncluster: {num_gpus: 256, chips: a800}\nsearch: {top: 3}\n",
    "mixed": "model: llama2-70b\ncluster: {num_gpus: 256, chips: {a800: 128, h800: 160}}\nsearch: {top: 5}\n",
    "infeasible": "model: llama2-70b\ncluster: {num_gpus: 8, chips: a800}\nsearch: {pin: {vpp: 1}}\n",
    "markup": f"""\
model: {{name: "{MARKUP}", layers: 32, hidden: 4096, ffn: 11008, heads: 32, vocab: 32000}}
cluster: {{num_gpus: 32, chips: {{"<img src=x onerror=alert(2)>": {{spec: {{
  peak_tflops: {{bf16: 400}}, memory: {{capacity_gb: 64, bandwidth_gb_s: 2000}},
  scale_up: {{bandwidth_gb_s: 200, domain_size: 8, topology: switched}}, scale_out: {{bandwidth_gbit_s: 200}}}}}}}}}}
search: {{top: 2, pin: {{pp: 4}}}}
""",
}
BATCH = "training: {global_batch_size: 512, sequence_length: 4096}\n"
TEXTS = {
    "solve": ("llama2-70b", "Best plan:", "Plans compared", "The pipeline over time", "gap 0 %"),
    "mixed": ("a800", "h800", "chips in order", "How sure the times are"),
    "infeasible": ("There is no plan", "Why there is no plan", "Too little memory"),
    "markup": (MARKUP, "<img src=x onerror=alert(2)>", "The pipeline over time"),
    "evaluate": ("The plan:", "Legal", "recomputation", "Where the memory goes"),
}
WIDTHS = (400, 1400)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of the reports, by name."""
    folder = tmp_path_factory.mktemp("reports")
    for name, spec in SPECS.items():
        (folder / f"{name}.yaml").write_text(spec + BATCH, encoding="utf-8")
        done = run("solve", str(folder / f"{name}.yaml"), "--html", str(folder / f"{name}.html"))
        assert done.exit_code == (3 if name == "infeasible" else 0), done.output
    published = [str(EXAMPLES / f"seed-published{end}.yaml") for end in ("", "-strategy")]
    done = run("evaluate", published[0], "--strategy", published[1], "--html", str(folder / "evaluate.html"))
    assert done.exit_code == 0
    return {name: folder / f"{name}.html" for name in TEXTS}


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
        "request", lambda request: told.append(request.url) if not request.url.startswith(("file:", "data:")) else 0
    )
    page.goto(file.as_uri())
    return page, told


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TEXTS)
def test_a_report_opens_fits_and_shows_what_matters(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    page, told = opened(browser, pages[name], width)
    for text in TEXTS[name]:
        page.get_by_text(text).filter(visible=True).first.wait_for(state="visible", timeout=5000)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = page.locator("p, h1, h2, li, .tiles div, .track, figcaption").all()
    for box in (shape.bounding_box() for shape in boxes if shape.is_visible()):
        assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= width + 0.5)
    if folder := os.environ.get("APSS_CP_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}-{width}.png", full_page=True)
    page.close()
    assert told == []


def test_dark_and_light_differ_and_both_have_contrast(browser: Any, pages: dict[str, Path]) -> None:
    colours = []
    for scheme in ("light", "dark"):
        page, told = opened(browser, pages["solve"], 1400, scheme)
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        if folder := os.environ.get("APSS_CP_SCREENSHOTS"):
            page.screenshot(path=f"{folder}/solve-{scheme}.png", full_page=True)
        page.close()
        assert told == []
    assert colours == ["rgb(255, 255, 255)", "rgb(18, 22, 29)"]


def test_the_switch_leaves_what_differs_and_the_legend_points(browser: Any, pages: dict[str, Path]) -> None:
    page, told = opened(browser, pages["mixed"], 1400)
    same, differs = page.locator("tr.same").first, page.locator("td.differs").first
    assert same.is_visible()
    page.get_by_label("only what differs").check()
    assert not same.is_visible()
    assert differs.is_visible()
    forward, backward = (page.locator(f"#timeline rect.k-{kind}").first for kind in ("forward", "backward"))
    page.locator("#timeline .legend li", has_text="forward").hover()
    strength = [box.evaluate("box => getComputedStyle(box).opacity") for box in (forward, backward)]
    assert strength == ["1", "0.18"]
    page.close()
    assert told == []


def test_without_a_script_nothing_is_missing(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["mixed"].as_uri())
    assert page.locator("tr.same").first.is_visible()
    assert not page.locator("label.switch").is_visible()
    context.close()


def test_it_prints_on_paper(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    page, _ = opened(browser, pages["mixed"], 1400)
    folder = Path(os.environ.get("APSS_CP_SCREENSHOTS", tmp_path))
    page.pdf(path=str(folder / "mixed.pdf"), format="A4")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 760, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 760
    page.screenshot(path=str(folder / "mixed-print.png"), full_page=True)
    page.close()
    assert (folder / "mixed.pdf").stat().st_size > 10_000
