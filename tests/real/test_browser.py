"""Reports in a real browser: no error, nothing wider than the window, the key texts visible, the script at work.

Needs Playwright for Python and a Chromium (`chromium`, `chromium-browser` or `google-chrome` on the path); screenshots
go to the folder that APSS_CP_SCREENSHOTS names, if any.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.real.browsing import WIDTHS, assert_it_fits, browser, needs_chromium, opened, photographed
from tests.support.checkout import ROOT
from tests.support.command import run

pytestmark = needs_chromium
__all__ = ["browser"]

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
    "solve": ("llama2-70b", "Best plan:", "Plans to pick", "The pipeline over time", "gap 0 %"),
    "mixed": ("a800", "h800", "chips in order", "How sure the times are"),
    "infeasible": ("There is no plan", "Why there is no plan", "Too little memory"),
    "markup": (MARKUP, "<img src=x onerror=alert(2)>", "The pipeline over time"),
    "evaluate": ("The plan:", "Legal", "recomputation", "Where the memory goes"),
}


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


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TEXTS)
def test_a_report_opens_fits_and_shows_what_matters(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    page, told = opened(browser, pages[name], width)
    for text in TEXTS[name]:
        page.get_by_text(text).filter(visible=True).first.wait_for(state="visible", timeout=30_000)
    assert_it_fits(page, width)
    photographed(page, f"{name}-{width}")
    page.close()
    assert told == []


def test_dark_and_light_differ_and_both_have_contrast(browser: Any, pages: dict[str, Path]) -> None:
    colours = []
    for scheme in ("light", "dark"):
        page, told = opened(browser, pages["solve"], 1400, scheme)
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        photographed(page, f"solve-{scheme}")
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
    compute, recomputed = (page.locator(f"#time .track .k-{kind}").first for kind in ("compute", "tensor_parallel"))
    page.locator("#time .legend li", has_text="compute").first.hover()
    strength = [box.evaluate("box => getComputedStyle(box).opacity") for box in (compute, recomputed)]
    assert strength == ["1", "0.18"]
    page.close()
    assert told == []


def test_without_a_script_nothing_is_missing(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["mixed"].as_uri())
    assert page.locator("tr.same").first.is_visible()
    assert not page.locator("label.switch").is_visible()
    assert page.locator("#timeline svg").is_visible()
    assert page.locator("table.map").is_visible()
    for part in (".live", ".tools", "#pick input", "#launch"):
        assert not page.locator(part).first.is_visible()
    assert seen(page) == [0]
    context.close()


def seen(page: Any) -> list[int]:
    """Of which plans, by place, the numbers are shown."""
    return [place for place, part in enumerate(page.locator(".of-plan").all()) if part.is_visible()]


def pixels(page: Any, chart: str) -> str:
    """What a chart's canvas shows."""
    shown: str = page.locator(f"[data-chart={chart}] canvas").first.evaluate("canvas => canvas.toDataURL()")
    return shown


def test_plans_are_picked_and_compared(browser: Any, pages: dict[str, Path]) -> None:
    page, told = opened(browser, pages["mixed"], 1400)
    before = pixels(page, "timeline")
    assert page.locator("[data-chart=timeline]").count() == 1
    page.get_by_label("show plan 2").check()
    assert seen(page) == [1]
    assert page.locator("#charts h3").all_inner_texts()[0].startswith("plan 2:")
    assert pixels(page, "timeline") != before
    page.get_by_label("compare with plan 1").check()
    assert page.locator("[data-chart=timeline]").count() == 2
    rows = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in compared(page)}
    assert rows["step"][2].startswith("-")  # plan 1 is the faster one
    assert sum(map(seconds_in, (cells[0] for name, cells in rows.items() if name in TIMES))) == pytest.approx(
        seconds_in(rows["step"][0]), abs=0.01
    )
    page.close()
    assert told == []


TIMES = (
    *("compute", "communication in layers", "recomputation", "sharded weights and gradients"),
    *("pipeline transfers (p2p)", "pipeline bubble", "data-parallel communication", "optimizer step"),
)


def compared(page: Any) -> list[Any]:
    """The rows of the table of two plans."""
    rows: list[Any] = page.locator("#versus tbody tr").all()
    return rows


def seconds_in(text: str) -> float:
    return float(text.removesuffix(" s").replace(",", ""))


def test_time_is_zoomed_by_hand_by_buttons_and_by_keys(browser: Any, pages: dict[str, Path]) -> None:
    page, told = opened(browser, pages["mixed"], 1400)
    window, readout = page.locator("#window"), page.locator(".readout").first
    assert window.inner_text().startswith("All of it: ")
    whole, memory = pixels(page, "timeline"), pixels(page, "memory")
    over = page.locator("[data-chart=timeline] .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    y = box["y"] + box["height"] * 0.9
    page.mouse.move(box["x"] + box["width"] * 0.2, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, y, steps=4)
    page.mouse.up()
    assert " to " in window.inner_text()
    assert pixels(page, "timeline") != whole
    assert pixels(page, "memory") != memory  # both have one window
    page.mouse.move(box["x"] + box["width"] * 0.5, y)
    assert re.fullmatch(r"plan 1, stage \d+ · \w+: .+ to .+ s \(.+\)", readout.inner_text())
    page.mouse.dblclick(box["x"] + box["width"] * 0.5, y)
    assert window.inner_text().startswith("All of it: ")
    for name, sign in (("Zoom in", "to"), ("Later", "to"), ("All of it", "All")):
        page.get_by_role("button", name=name).click()
        assert sign in window.inner_text()
    page.locator("[data-chart=timeline]").focus()
    told_by_keys = []
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        page.keyboard.press(key)
        told_by_keys.append(readout.inner_text())
    assert len(set(told_by_keys)) == 3  # from pass to pass, then to the stage above
    assert ["stage 7 " in text for text in told_by_keys] == [True, True, False]
    assert "stage 6 " in told_by_keys[-1]
    page.keyboard.press("+")
    assert " to " in window.inner_text()
    page.keyboard.press("0")
    assert window.inner_text().startswith("All of it: ")
    page.close()
    assert told == []


def test_tables_are_sorted_and_filtered(browser: Any, pages: dict[str, Path]) -> None:
    page, told = opened(browser, pages["mixed"], 1400)
    cells = page.locator("#pick tbody tr td:nth-child(12)")
    head = page.locator("#pick thead th", has_text="memory")
    for order, reverse in (("ascending", False), ("descending", True)):
        head.get_by_role("button").press("Enter")
        shown = [float(text.removesuffix(" %")) for text in cells.all_inner_texts()]
        assert shown == sorted(shown, reverse=reverse)
        assert len(shown) == 6  # one is there for being safe
        assert head.get_attribute("aria-sort") == order
    page.locator("#compute").get_by_label("Filter").fill("mlp")
    names = [row.inner_text() for row in page.locator("#compute tbody th").all() if row.is_visible()]
    assert names == ["mlp up", "mlp down"]
    page.close()
    assert told == []


def test_the_proof_is_read_by_pointer_and_by_keys(browser: Any, pages: dict[str, Path]) -> None:
    page, told = opened(browser, pages["mixed"], 1400)
    said = page.locator("#map-told")
    page.locator("table.map td.e-refused").first.hover()
    assert "ruled out by" in said.inner_text()
    page.locator("table.map td[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    plan = page.locator("table.map td.e-plan").first.get_attribute("data-told")
    page.locator("table.map td.e-plan").first.click()
    assert said.inner_text() == plan
    page.keyboard.press("ArrowDown")
    assert said.inner_text().startswith("tp ")
    assert said.inner_text() != plan
    page.close()
    assert told == []


def test_the_launch_is_copied_and_files_are_saved(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    page = context.new_page()
    page.goto(pages["solve"].as_uri())
    page.locator("#copy").click()
    page.get_by_text("Copied.").wait_for(timeout=30_000)
    text = page.evaluate("navigator.clipboard.readText()")
    assert "--tensor-model-parallel-size" in text
    assert text.rstrip() == page.locator("#launch pre").text_content().rstrip()
    kept: dict[str, Any] = {}
    for name in ("save-json", "save-trace"):
        with page.expect_download() as download:
            page.locator(f"#{name}").click()
        download.value.save_as(tmp_path / name)
        kept[name] = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    assert kept["save-json"]["status"] == "optimal"
    events = [event for event in kept["save-trace"]["traceEvents"] if event["ph"] == "X"]
    assert {event["cat"] for event in events} >= {"forward", "backward", "idle", "optimizer"}
    context.close()


def test_it_prints_on_paper(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    page, _ = opened(browser, pages["mixed"], 1400)
    folder = Path(os.environ.get("APSS_CP_SCREENSHOTS", tmp_path))
    page.pdf(path=str(folder / "mixed.pdf"), format="A4")
    assert page.locator("#charts").is_visible()
    page.emulate_media(media="print")
    assert page.locator("#charts").is_hidden()
    assert page.locator("#timeline svg").is_visible()
    page.set_viewport_size({"width": 760, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 760
    page.screenshot(path=str(folder / "mixed-print.png"), full_page=True)
    page.close()
    assert (folder / "mixed.pdf").stat().st_size > 10_000
