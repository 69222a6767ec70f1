"""Errors in Chinese: of specs and plans with their values, of options; as JSON they are English."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cpsolver.commands.usage import asked_language
from tests.support.command import run

SPEC: dict[str, Any] = {
    "model": "llama2-7b",
    "cluster": {"num_gpus": 12, "chips": {"a800": 8}},
    "training": {"global_batch_size": 64, "sequence_length": 4096, "precision": "fp16", "fp8_attention": True},
    "search": {"pin": {"stage_chips": ["a800"], "layers": [16, 16]}},
}
CHINESE_ONLY = (
    "不是 cluster.gpus_per_node = 8（默认值） 的倍数：节点须整个使用（允许：8 或 16，或另一个 gpus_per_node）",
    "多于 cluster.chips 所有的：共 8 张（a800: 8）（允许：最多 8）",
    "与 training.precision = 'fp16' 矛盾：层里没有 8 位的部分（允许：false，或 precision 为 fp8 or nvfp4）",
    "有 2 项，而 search.pin.stage_chips 有 1 项：每个阶段须有一项",
)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(SPEC))
    return str(file)


def test_what_is_wrong_with_a_spec_is_said_with_its_values(spec: str) -> None:
    found = run("solve", spec, "--lang", "zh")
    assert found.exit_code == 2
    assert [text for text in CHINESE_ONLY if text not in found.stderr] == []


def test_json_stays_english(spec: str) -> None:
    chinese, english = (run("solve", spec, "--lang", name, "--json") for name in ("zh", "en"))
    assert (chinese.stdout, chinese.stderr) == (english.stdout, english.stderr)
    assert "nodes are used whole" in json.loads(chinese.stdout)["troubles"][0]["message"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["solvee"], "没有命令 'solvee'。您是不是想写 'solve'？"),
        (["solve"], "缺少参数 'SPEC'"),
        (["solve", "x", "--tip", "3"], "没有选项 '--tip'。"),
        (["solve", "x", "--top", "0"], "0 不在范围 1<=x<=100 之内。"),
        (["solve", "x", "y"], "多了一个参数（y）"),
        (["check", "x", "--set", "tp=0", "--set", "tq=1"], "没有这个文件"),
    ],
)
def test_options_that_there_are_not(arguments: list[str], told: str) -> None:
    for found in (run(*arguments, "--lang", "zh"), run(*arguments, LC_ALL="zh_CN.UTF-8")):
        assert found.exit_code == 2
        assert told in found.stderr
        assert not re.search("Error|Usage|Try", found.stderr)
    english = run(*arguments, LC_ALL="C").stderr
    assert english.isascii()


def test_the_language_is_known_before_the_options_are_read() -> None:
    assert asked_language(["solve", "--lang", "zh", "--foo"]) == asked_language(["--lang=zh"]) == "zh"
    assert asked_language(["solve", "--lang"]) is asked_language(["solve"]) is None
