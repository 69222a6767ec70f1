"""Pages of sweeps and comparisons in a real browser: no error, nothing too wide, every part at work, keys too."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.real.browsing import WIDTHS, assert_it_fits, browser, needs_chromium, opened, photographed
from tests.support.command import run

__all__ = ["browser"]

pytestmark = needs_chromium
AUDIT = (Path(__file__).parent / "audited.js").read_text(encoding="utf-8")
MARKUP = "<img src=x onerror=alert(1)>"
SWEEP = f"""
base:
  model: llama2-7b
  cluster: {{num_gpus: 16, chips: a800, prices: {{a800: 1.2}}}}
  training: {{global_batch_size: 64, sequence_length: 4096, tokens: 1.0e+11}}
  search: {{top: 2, pin: {{tp: 2, cp: 1, mbs: 1, vpp: 1}}}}
grid:
  cluster.num_gpus: [16, 32, 64]
  mix:
    - {{label: plain, cluster.chips: a800}}
    - {{label: "{MARKUP}", cluster: {{chips: {{a800: 50 %, h800: 50 %}}, prices: {{a800: 1.2, h800: 2.1}}}}}}
list: [{{label: none, cluster.num_gpus: 8, search.pin.tp: 3}}, {{label: wrong, model: {MARKUP}}}]
"""
SPEC = "model: llama2-7b\ncluster: {num_gpus: 16, chips: a800}\nsearch: {pin: {tp: 2, cp: 1}}\n"
BATCH = "training: {global_batch_size: 64, sequence_length: 4096, tokens: 1.0e+11}\n"
TEXTS = {
    "sweep": ("sweep.yaml", "8 cells:", "Weighed against each other", "Cells to pick", MARKUP, "Winner: "),
    "comparison": ("3 options: llama2-7b", "Options to pick", "Winner: ", "a800:16@1.2, +1 node"),
}
POINTS = {"sweep": 6, "comparison": 9}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages by name."""
    folder = tmp_path_factory.mktemp("choices")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("sweep.yaml").write_text(SWEEP, encoding="utf-8")
        Path("spec.yaml").write_text(SPEC + BATCH, encoding="utf-8")
        done = run("open", "sweep.yaml", "--html", "sweep.html", "--no-browser")
        assert done.exit_code == 0, done.output
        on = [word for chips in ("a800:16@1.2", "a800:32@1.2", "h800:16@2.1") for word in ("--on", chips)]
        done = run("compare", "spec.yaml", *on, "--html", "comparison.html")
        assert done.exit_code == 0, done.output
    return {name: folder / f"{name}.html" for name in TEXTS}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TEXTS)
def test_a_page_fits_shows_what_matters_and_has_no_fault(
    browser: Any, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    page, told = opened(browser, pages[name], width, scheme)
    for text in TEXTS[name]:
        page.get_by_text(text).filter(visible=True).first.wait_for(state="visible", timeout=30_000)
    assert_it_fits(page, width)
    photographed(page, f"{name}-{width}-{scheme}")
    assert page.evaluate(AUDIT) == []
    page.close()
    assert told == []


def test_the_audit_finds_faults(browser: Any, pages: dict[str, Path]) -> None:
    page, _ = opened(browser, pages["sweep"], 1400)
    page.evaluate(
        """() => {
        const add = (name, words, more = {}) => {
          const made = document.createElement(name);
          made.textContent = words;
          Object.assign(made, more);
          document.querySelector('main').append(made);
          return made;
        };
        add('button', '');
        add('p', 'pale').style.color = '#bbb';
        add('h6', 'deep');
        add('div', 'again', { id: 'pick' });
        add('div', 'stop', { tabIndex: 0 });
      }"""
    )
    faults = [fault.split(":")[0] for fault in page.evaluate(AUDIT)]
    assert {"no name", "heading 6 after 3", "id twice", "focus without a role"} <= set(faults)
    assert any(fault.startswith("contrast") for fault in faults)
    page.close()


def picked(page: Any) -> str:
    """The name of what is shown."""
    shown: str = page.locator("#detail-title").inner_text()
    assert page.locator("#pick tr.picked th").inner_text() == shown
    return shown


DRAWN = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def pixels(page: Any) -> str:
    shown: str = page.locator("#charts canvas").evaluate("canvas => canvas.toDataURL()")
    return shown


@pytest.mark.parametrize("name", TEXTS)
def test_points_lead_to_plans_by_keys(browser: Any, pages: dict[str, Path], name: str) -> None:
    page, told = opened(browser, pages[name], 1400)
    readout, first = page.locator("#picture .readout"), picked(page)
    page.locator("[data-chart=points]").focus()
    seen = []
    for _ in range(POINTS[name]):
        page.keyboard.press("ArrowLeft")
    for _ in range(POINTS[name]):
        seen.append(readout.inner_text())
        page.keyboard.press("ArrowRight")
    assert len(set(seen)) == POINTS[name]
    assert all("days" in text and "tp 2" in text for text in seen)
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.locator("#detail-title:focus").wait_for()  # not by an expression, which the page's policy has it evaluate once
    assert picked(page) != first
    assert readout.inner_text().startswith(picked(page))
    assert page.locator("#detail dl dd").first.is_visible()
    page.get_by_text("Back to the picture").click()
    page.go_back()
    page.go_back()
    page.close()
    assert told == []


def test_a_click_on_a_point_shows_its_plan_and_can_be_linked_to(browser: Any, pages: dict[str, Path]) -> None:
    page, told = opened(browser, pages["sweep"], 1400)
    before = picked(page)
    over = page.locator("#charts .u-over")
    over.scroll_into_view_if_needed()
    page.locator("[data-chart=points]").focus()
    for _ in range(POINTS["sweep"]):
        page.keyboard.press("ArrowRight")
    last = page.locator("#picture .readout").inner_text()
    box = over.bounding_box()
    spots = ((across, down) for across in range(58, 50, -1) for down in range(1, 60))
    for across, down in spots:  # it stands at the right
        page.mouse.move(box["x"] + box["width"] * across / 60, box["y"] + box["height"] * down / 60)
        page.evaluate(DRAWN)  # what is read is of this spot, not of the one before
        if "near" in over.get_attribute("class") and page.locator("#picture .readout").inner_text() == last:
            break
    else:
        raise AssertionError("no such point")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url("**#cell-*")
    page.evaluate(DRAWN)
    assert last.startswith(picked(page))
    assert picked(page) != before
    address, shown = page.url, picked(page)
    page.close()
    again = browser.new_page(viewport={"width": 400, "height": 900})
    again.goto(address)
    again.locator("html[data-ready]").wait_for(timeout=30_000)
    assert picked(again) == shown
    again.close()
    assert told == []


def test_axes_lines_and_the_filter_change_the_picture(browser: Any, pages: dict[str, Path]) -> None:
    page, told = opened(browser, pages["sweep"], 1400)
    front, states = page.locator("#front"), [pixels(page)]
    assert "lower $ in all and lower days" in front.inner_text()
    page.get_by_label("Up").select_option("tokens/s")
    page.get_by_label("Across").select_option("devices")
    states.append(pixels(page))
    assert "higher tokens/s and lower devices" in front.inner_text()
    links = front.get_by_role("link").all_inner_texts()
    assert links == [f"16, {MARKUP}", f"32, {MARKUP}", f"64, {MARKUP}"]
    off = page.locator("#lines button", has_text=f"llama2-7b, {MARKUP}")
    off.click()
    assert off.get_attribute("aria-pressed") == "false"
    states.append(pixels(page))
    assert front.get_by_role("link").all_inner_texts() == ["16, plain", "32, plain", "64, plain"]
    page.get_by_label("Filter").fill("64, PLAIN")
    states.append(pixels(page))
    assert front.get_by_role("link").all_inner_texts() == ["64, plain"]
    assert len(set(states)) == 4
    page.get_by_label("Filter").fill("nothing like it")
    assert page.get_by_text("Nothing that is shown has both figures.").is_visible()
    page.get_by_label("Filter").fill("")
    off.click()
    assert len(front.get_by_role("link").all()) == 3
    page.close()
    assert told == []


def test_cells_are_picked_compared_and_sorted(browser: Any, pages: dict[str, Path]) -> None:
    page, told = opened(browser, pages["sweep"], 1400)
    page.get_by_label("show none").check()
    assert picked(page) == "none"
    assert "Infeasible." in page.locator("#detail").inner_text()
    page.get_by_label("show 16, plain").check()
    page.get_by_label("compare with 64, plain").check()
    rows = {
        row.locator("th").inner_text(): row.locator("td").all_inner_texts()
        for row in page.locator("#versus tbody tr").all()
    }
    assert rows["devices"] == ["16", "64", "+300.0 %"]
    assert rows["status"][2] == "="
    page.locator("#pick thead th", has_text="tokens/s").first.get_by_role("button").press("Enter")
    column = page.locator("#pick thead th").all_inner_texts().index("tokens/s")
    shown = page.locator(f"#pick tbody tr td:nth-child({column + 1})").all_inner_texts()
    figures = [float(text.replace(",", "")) for text in shown if text != "–"]
    assert len(figures) == 6
    assert figures == sorted(figures)
    assert picked(page) == "16, plain"
    page.close()
    assert told == []


@pytest.mark.parametrize("name", TEXTS)
def test_files_are_saved(browser: Any, pages: dict[str, Path], name: str, tmp_path: Path) -> None:
    page, told = opened(browser, pages[name], 400)
    for kind in ("json", "csv"):
        with page.expect_download() as download:
            page.locator(f"#save-{kind}").click()
        assert download.value.suggested_filename == f"apss-cp-{name}.{kind}"
        download.value.save_as(tmp_path / kind)
    cells = json.loads((tmp_path / "json").read_text(encoding="utf-8"))["cells" if name == "sweep" else "options"]
    with (tmp_path / "csv").open(encoding="utf-8", newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == [cell["status"] for cell in cells]
    page.close()
    assert told == []


@pytest.mark.parametrize("name", TEXTS)
def test_without_a_script_and_on_paper_nothing_is_missing(
    browser: Any, pages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages[name].as_uri())
    assert page.locator("#pick table").is_visible()
    for part in (".live", ".tools", "#pick input", "#detail"):
        assert not page.locator(part).first.is_visible()
    assert page.locator("svg.plot").count() == (4 if name == "sweep" else 0)
    context.close()
    page, _ = opened(browser, pages[name], 1400)
    page.pdf(path=str(tmp_path / "page.pdf"), format="A4")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 760, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth") <= 760
    photographed(page, f"{name}-print")
    assert not page.locator("#charts").is_visible()
    page.close()
