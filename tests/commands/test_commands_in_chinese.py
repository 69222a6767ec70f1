"""Catalogues, validation, calibration and tuning in Chinese: nothing English is left but names; files stay English."""

from __future__ import annotations

import ast
import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from cpsolver.doors.report.layout import Prose
from cpsolver.doors.report.validation import validation_report
from cpsolver.doors.tune import state_notes
from cpsolver.doors.tune.state_notes import retold
from cpsolver.evidence.runs.validation import validate
from cpsolver.inputs.language import CHINESE, speaking
from tests.support.calibrating import cluster_rows, text_of
from tests.support.command import in_tmp, run, write
from tests.support.measured import prediction, runs
from tests.support.tuning import TRAINING, kept, spec

__all__ = ["in_tmp"]

ROOT = Path(state_notes.__file__).parents[3]

NAMES = {
    *("ffn", "bf16", "NAME", "TFLOP/s", "GB", "GB/s", "Gbit/s", "B", "s", "GiB", "tokens/s", "token", "tau", "Kendall"),
    *("scale-up", "scale-out", "device", "reserved", "a800", "pp", "tp", "dp", "vpp", "mbs", "zero1", "megatron-core"),
    *("apss-cp", "networks"),
}
"""What stays as it is: names of fields and of catalogues, the program; units."""


def english(text: str) -> list[str]:
    """The words that are neither names nor commands, files or options."""
    text = re.sub(r"apss-cp\s.*|--[\w-]+( \d+)?|\S*/\S+\.\w+|cluster\.\w+", "", text)
    return [word for word in dict.fromkeys(re.findall(r"[A-Za-z][A-Za-z0-9/_.-]*", text)) if word not in NAMES]


@pytest.mark.parametrize("command", ["models", "chips", "networks"])
def test_a_catalogue_is_listed_in_chinese(command: str) -> None:
    listed = run(command, "--lang", "zh").stdout
    heading, *rows = listed.splitlines()
    entries = {line.split()[0] for line in rows if line[:1].isascii() and line.strip()}
    told = [line for line in (heading, *rows) if not set(line.split()[:1]) & entries or "未知" in line]
    assert [word for word in english("\n".join(told)) if word not in entries] == []
    assert max(map(cell_len, listed.splitlines())) <= 80


@pytest.mark.parametrize("asked", ["chips h800", "stacks", "networks superpod-h100", "schema"])
def test_machines_are_answered_alike(asked: str) -> None:
    json = () if asked == "schema" else ("--json",)
    chinese, english = (run(*asked.split(), *json, "--lang", name).stdout for name in ("zh", "en"))
    assert chinese == english


def test_an_unknown_name_is_told_in_chinese() -> None:
    assert "未知的芯片" in run("chips", "h801", "--lang", "zh").stderr


def test_a_validation_in_chinese(tmp_path: Path) -> None:
    out = io.StringIO()
    with speaking(CHINESE):
        rows = runs(tmp_path, {"id": "near"}, {"id": "part", "mbs": "", "complete": 0})
        found = validate(rows, lambda _: prediction(9.0))
        Console(file=out, width=80, highlight=False).print(validation_report(found))
    ids = re.compile(r"\b(near|part|bloom|a100|megatron-deepspeed|source)\b")
    assert not {"runs", "error", "measured", "predicted", "incomplete", "row"} & set(
        english(ids.sub("", out.getvalue()))
    )
    assert "不完整：mbs" in out.getvalue()


@pytest.mark.full
def test_doubts_are_told_in_chinese_and_written_in_english() -> None:
    rows = cluster_rows(4)
    rows[0]["step_time_s"] = 3 * float(rows[0]["step_time_s"])
    found = run("calibrate", write("runs.csv", text_of(rows)), "-o", "ours.yaml", "--anyway", "--lang", "zh")
    assert "标准差" in found.stderr
    assert "常数" in found.stdout
    assert Path("ours.yaml").read_text(encoding="utf-8").isascii()


def test_a_tuning_in_chinese_keeps_its_state_in_english() -> None:
    found = run(
        "tune", spec(), "--policy", "top", "--run", f"{TRAINING} {{arguments}}", "--max-trials", "1", "--lang", "zh"
    )
    report = found.stdout.split("即\n")[0] + found.stdout.split("--ms")[-1]
    assert "已测最优方案" in report
    assert "1 次试验" in report
    (trial,) = kept()
    assert (trial.why, trial.note) == ("plan 1 of 3 by prediction", "")
    assert (trial.directory / "train.sh").read_text(encoding="utf-8").isascii()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "best of draw 2 of constants, after 1 run to learn from; a plan more than 3% faster is left with chance 9%",
            "第 2 次抽样的常数下最好的方案，可供学习的运行有 1 次；还有方案快 3% 以上的几率为 9%",
        ),
        ("exit code 1: RuntimeError: lost (log: /a/log.txt)", "退出码 1：RuntimeError: lost（日志：/a/log.txt）"),
        ("ended after 1 measured iteration, which was asked for", "测满要求的 1 次迭代后结束"),
        ("ended by Ctrl-C after 3 measured iterations", "被 Ctrl-C 结束，已测 3 次迭代"),
        ("what the user wrote; of it", "what the user wrote；of it"),
    ],
)
def test_what_a_state_keeps_is_told_in_chinese(words: str, told: str) -> None:
    assert retold(words) == words
    with speaking(CHINESE):
        assert retold(words) == told


def test_what_a_state_may_keep_is_what_tuning_writes() -> None:
    """Every piece of these sentences between their fields, and nouns that are counted, stands in the code."""
    files = [file for room in ("tune", "export") for file in (ROOT / "cpsolver" / "doors" / room).glob("*.py")]
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files if file != Path(state_notes.__file__))
    constants = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    written = "\n".join(re.sub(r"{.*?}", "{}", text) for text in constants if isinstance(text, str))
    pieces = {
        piece
        for words in state_notes.KEPT
        for piece in re.split(r"{\w+}|runs? |measured iterations?|, which w(?:as|ere) |lines? ", words)
    }
    assert [piece for piece in sorted(pieces) if piece.strip(" :;,.()") not in written] == []


def test_prose_fills_its_lines_and_starts_none_with_a_mark() -> None:
    out = io.StringIO()
    with speaking(CHINESE):
        Console(file=out, width=20, highlight=False).print(
            Prose("这是一个很长的句子，没有空格。它要分成几行，每行都要填满。")
        )
    first, *others = out.getvalue().splitlines()
    assert 18 <= cell_len(first) <= 20
    assert not [line for line in others if line[:1] in "，。"]
