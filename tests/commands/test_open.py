"""`apss-cp open`: a spec is planned and its page shown, a page that is there is shown as it is."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write
from tests.support.html_page import parse
from tests.support.problems import chip_spec, model_spec

SPEC: dict[str, Any] = {
    "model": model_spec(name="m"),
    "cluster": {"num_gpus": 8, "chips": {"x": {"spec": chip_spec()}}},
    "training": {"global_batch_size": 16, "sequence_length": 1024},
    "search": {"top": 2, "pin": {"pp": 2, "tp": 1, "mbs": 1, "cp": 1}},
}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is shown in the browser."""
    urls: list[str] = []

    def show(url: str) -> bool:
        urls.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", show)
    return urls


def test_a_spec_is_planned_kept_and_shown(shown: list[str]) -> None:
    result = run("open", write("spec.yaml", json.dumps(SPEC)), "--html", "plan.html")
    page = Path("plan.html").resolve()
    assert result.exit_code == 0, result.output
    assert (result.stdout, shown) == (f"{page}\n", [page.as_uri()])
    data = json.loads(parse(page.read_text(encoding="utf-8")).one("script", id="data").text)
    assert data["document"]["status"] == "optimal"
    assert {plan["launch"]["target"] for plan in data["plans"]} == {"megatron-lm"}
    run("open", "plan.html")
    assert shown == [page.as_uri()] * 2


SIZES = {"base": SPEC, "grid": {"training.global_batch_size": [16, 32]}}


@pytest.mark.full
def test_a_sweep_is_solved_kept_and_shown(shown: list[str]) -> None:
    sweep = write("sizes.yaml", json.dumps(SIZES))
    result = run("open", sweep, "--html", "sizes.html")
    assert result.exit_code == 0, result.output
    assert shown == [Path("sizes.html").resolve().as_uri()]
    page = parse(Path("sizes.html").read_text(encoding="utf-8"))
    assert [row.one("th").text for row in page.one("section", id="pick").one("tbody").all("tr")] == ["16", "32"]
    assert Path("sizes.sqlite").is_file()


def test_several_specs_are_weighed(shown: list[str]) -> None:
    training = {**SPEC["training"], "tokens": 1e9}
    names = [
        write(f"{batch}.yaml", json.dumps({**SPEC, "training": {**training, "global_batch_size": batch}}))
        for batch in (16, 32)
    ]
    result = run("open", *names, "--html", "both.html")
    assert result.exit_code == 0, result.output
    page = parse(Path("both.html").read_text(encoding="utf-8"))
    rows = page.one("section", id="pick").one("tbody").all("tr")
    assert [row.one("th").text for row in rows if "node" not in row.one("th").text] == names
    assert shown == [Path("both.html").resolve().as_uri()]


def test_what_goes_with_one_spec_only_is_refused(shown: list[str]) -> None:
    sweep, spec = write("sizes.yaml", json.dumps(SIZES)), write("spec.yaml", json.dumps(SPEC))
    for files in ([sweep], [spec, spec]):
        result = run("open", *files, "--top", "2")
        assert result.exit_code == 2
        assert "--top" in result.stderr
    Path("page.html").write_text("", encoding="utf-8")
    result = run("open", "page.html", spec)
    assert result.exit_code == 2
    assert "page.html: is a page already: it is shown by itself" in result.stderr
    assert shown == []


def test_without_a_browser_the_page_is_there_all_the_same(
    shown: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    result = run("open", write("spec.yaml", json.dumps(SPEC)), "--no-browser", "--top", "1")
    assert result.exit_code == 0
    assert Path(result.stdout.strip()).read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert shown == []
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    result = run("open", result.stdout.strip())
    assert result.exit_code == 0
    assert "no browser was found" in result.stderr


def test_what_cannot_be_shown_is_told_at_once() -> None:
    result = run("open", "none.html", "--top", "2", "--html", "other.html")
    assert result.exit_code == 2
    assert result.stderr.count("error:") == 3
    assert "none.html: is no file" in result.stderr
    assert run("open", "none.yaml").exit_code == 2
    write("wrong.yaml", "model: nothing-known\n")
    assert run("open", "wrong.yaml", "--html", "wrong.yaml").exit_code == 2
    assert Path("wrong.yaml").read_text(encoding="utf-8") == "model: nothing-known\n"
