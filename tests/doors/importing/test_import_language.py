"""Imports in Chinese: what was read, what is wrong with a script; the written files and JSON are the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cpsolver.doors.importing.output import wrapped
from cpsolver.inputs.language import CHINESE, speaking
from tests.support.checkout import ROOT
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write

EXAMPLE = str(ROOT / "examples" / "mindspeed-llama-7b.sh")
NAMES = {
    *("llama-7b", "B", "x", "ascend_910b", "token", "fp16", "bf16", "ascendspeed", "mindspeed-llm", "tp", "pp", "dp"),
    *("flash", "attention", "Llama2Tokenizer", "Megatron", "fill-me-in"),
}
"""What stays as it is: names of the catalogues and of fields, units."""


def english(text: str) -> list[str]:
    """The words that are no names; files, commands, flags and variables are left out."""
    known = r"^.*sh：|apss-cp .*|`.*`|--[\w-]+|\w+=\S+|cluster\.chips"
    words = re.findall(r"[A-Za-z][\w-]*", re.sub(known, "", text, flags=re.MULTILINE))
    return [word for word in dict.fromkeys(words) if word not in NAMES]


def test_the_report_leaves_only_names_in_english() -> None:
    told = run("import", EXAMPLE, "--lang", "zh")
    assert told.exit_code == 0
    assert english(told.stderr) == []
    assert "需要" not in told.stdout


def test_files_and_json_are_the_same_in_both_languages() -> None:
    documents = []
    for name in ("zh", "en"):
        files = "-o", f"{name}.yaml", "--strategy-output", f"{name}-plan.yaml"
        documents.append(json.loads(run("import", EXAMPLE, *files, "--json", "--lang", name).stdout))
        run("import", EXAMPLE, *files, "--force", "--lang", name)
    assert documents[0] == documents[1]
    assert Path("zh.yaml").read_text() == Path("en.yaml").read_text()
    assert Path("zh-plan.yaml").read_text() == Path("en-plan.yaml").read_text()


def test_lines_keep_their_width() -> None:
    from rich.cells import cell_len

    with speaking(CHINESE):
        said = wrapped(run("import", EXAMPLE, "--chip", "ascend_910b", "--lang", "zh").stderr)
    lines = [line for line in said.splitlines() if "apss-cp" not in line and "example" not in line]
    assert max(map(cell_len, lines)) <= 80
    assert [line for line in lines if line.startswith("               ")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("torchrun pretrain_gpt.py --num-layers 4 --hidden-size $WIDTH", "需要 WIDTH，而它在脚本中没有设置（第 1 行）"),
        ("torchrun pretrain_gpt.py --num-layers 4 --hidden-size $(nproc)", "是命令的输出"),
        ("torchrun pretrain_gpt.py --num-layers 5 --pipeline-model-parallel-size 2", "5 层不是"),
        ("torchrun pretrain_gpt.py --num-layers 4 --share-kvstates", "这里的模型结构无法表达"),
        ("torchrun pretrain_vit.py --num-layers 4", "是视觉模型：这里只规划解码器的训练"),
        ("if true; then", "不是 shell 脚本：缺少 'fi'"),
        ("[1, 2", "没有训练命令"),
    ],
)
def test_what_is_wrong_is_told_in_chinese(text: str, words: str) -> None:
    told = run("import", write("train.sh", text), "--lang", "zh")
    assert told.exit_code == 2
    assert words in told.stderr
    plain = re.sub(r"^错误： .*?: |（允许：.*?）|--[\w-]+", "", told.stderr, flags=re.MULTILINE)
    assert set(re.findall(r"[A-Za-z]{3,}", plain)) <= {"shell", "token", "WIDTH", "nproc", "hyper", "connection"}
