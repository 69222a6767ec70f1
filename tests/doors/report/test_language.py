"""Reports in Chinese: as narrow as the English ones, with nothing left in English but names; JSON is the same."""

from __future__ import annotations

import io
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

import cpsolver
from cpsolver.commands.main import SPEAKS
from cpsolver.doors.report.answer import answer
from cpsolver.inputs.language import CHINESE, ENGLISH, of_locale, speaking, spoken
from tests.support.command import run
from tests.support.selection import full

DENSE: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"num_gpus": 16, "chips": "a800"},
    "training": {"global_batch_size": 64, "sequence_length": 4096},
}
MIXED = {**DENSE, "model": "llama2-13b", "cluster": {"num_gpus": 32, "chips": {"a800": 16, "h800": 24}}}
PRICED = {**DENSE, "cluster": {"num_gpus": 16, "chips": "a800", "prices": {"a800": 1.2}, "idle": True}}
TOO_BIG = {**DENSE, "model": "llama2-70b", "cluster": {"num_gpus": 8, "chips": "a800"}}
SPECS = {"dense": DENSE, "mixed": MIXED, "priced": PRICED, "too big": TOO_BIG}
NAMES = {
    *(
        "a800",
        "h800",
        "b200",
        "ampere",
        "hopper",
        "megatron-core",
        "megatron-lm",
        "llama2",
        "bf16",
        "launch",
        "OOM",
        "P",
    ),
    *(
        "token",
        "tokens/s",
        "tokens/s/GPU",
        "GPU",
        "GiB",
        "MFU",
        "ZeRO",
        "ZeRO-1",
        "none",
        "selective",
        "block",
        "uniform",
        "s",
        "ms",
        "x",
        "B",
    ),
    *("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "mbs", "flash", "attention", "p2p", "allgather"),
}
"""What stays as it is: commands, names of the catalogues and of fields, sizes, units."""


@cache
def screen(name: str, width: int) -> str:
    with speaking(CHINESE):
        found = cpsolver.plan(cpsolver.make_problem(SPECS[name]))
        out = io.StringIO()
        Console(file=out, width=width, highlight=False).print(answer(found.problem, found.result))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, full(140)])
@pytest.mark.parametrize("name", SPECS)
def test_the_first_screen_keeps_its_width(name: str, width: int) -> None:
    lines = screen(name, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= 24


@pytest.mark.parametrize("name", SPECS)
def test_the_first_screen_leaves_only_names_in_english(name: str) -> None:
    text = re.sub(r"apss-cp .*|llama2-\w+|(search|cluster|training)\.\w+|--[\w-]+", "", screen(name, 80))
    words = re.findall(r"[A-Za-z][A-Za-z0-9/-]*", text)
    assert [word for word in dict.fromkeys(words) if word not in NAMES] == []


@pytest.mark.parametrize("name", SPECS)
def test_no_phrase_starts_with_what_ends_one(name: str) -> None:
    phrases = [phrase for line in screen(name, 80).splitlines() for phrase in line.split(" · ")]
    assert not [phrase for phrase in phrases if phrase.lstrip()[:1] in set("，。；：、）")]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(DENSE))
    return str(file)


def test_json_is_the_same_in_both_languages(spec: str) -> None:
    chinese, english = (
        json.loads(run("evaluate", spec, "--set", "tp=2", "--json", "--lang", name).stdout) for name in ("zh", "en")
    )
    assert chinese == english


def test_the_locale_decides_and_the_option_prevails(spec: str) -> None:
    asked = "evaluate", spec, "--set", "tp=2"
    assert "合法" in run(*asked, LC_ALL="zh_CN.UTF-8").stdout
    assert "合法" in run("--lang", "zh", *asked).stdout
    assert "Legal" in run(*asked, "--lang", "en", LC_ALL="zh_CN.UTF-8").stdout
    assert "Legal" in run(*asked, LC_ALL="C", LANG="zh_CN.UTF-8").stdout
    assert spoken() == ENGLISH


def test_a_locale_is_read_as_posix_has_it() -> None:
    assert of_locale({"LANG": "zh_CN.UTF-8"}) == of_locale({"LC_MESSAGES": "zh_TW", "LANG": "en_US.UTF-8"}) == CHINESE
    assert of_locale({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}) == of_locale({}) == ENGLISH


def test_another_language_is_refused(spec: str) -> None:
    found = run("solve", spec, "--lang", "fr")
    assert found.exit_code == 2
    assert "'fr' is not one of 'en', 'zh'" in found.stderr


def test_errors_are_told_in_chinese(tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({**DENSE, "model": "llama2-7", "trainin": {}}))
    found = run("solve", str(file), "--lang", "zh")
    assert found.exit_code == 2
    assert "错误：" in found.stderr
    assert "不是已知的字段" in found.stderr


def test_what_other_tools_read_is_in_english() -> None:
    assert "search" not in SPEAKS
    asked = shlex.split("search --model-name llama2-7b --num-gpus 8 --gpu-infos a800:8 --global-batch-size 64 --top 1")
    chinese, english = (run(*asked, LC_ALL=locale).stdout for locale in ("zh_CN.UTF-8", "C"))
    assert chinese == english != ""


def test_the_page_speaks_chinese_and_its_script_has_the_words() -> None:
    with speaking(CHINESE):
        page = cpsolver.plan(cpsolver.make_problem(DENSE)).to_html()
    assert '<html lang="zh">' in page
    assert all(text in page for text in ("可供挑选的方案", "流水线随时间的变化", "显存用在哪里", "证明"))
    words = re.search(r'<script type="application/json" id="words">(.*?)</script>', page)
    assert words is not None
    assert json.loads(words[1])["Copied."] == "已复制。"
    shown = re.findall(r'<li data-kind="(?:forward|backward|idle)">.*?</li>', page)
    assert shown
    assert not any(re.search(r">[a-z ]+</li>", entry) for entry in shown), shown
