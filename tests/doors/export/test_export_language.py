"""Exports, refusals and rank maps in Chinese: files and JSON are the same, the rest leaves only names in English."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import cpsolver
from cpsolver.inputs.language import CHINESE, speaking
from tests.commands.test_export_command import EVEN, MIXED, UNEVEN, export
from tests.commands.test_export_command import SPEC as CLUSTER
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write

ALONE = {
    "model": "llama2-7b",
    "cluster": {"num_gpus": 8, "chips": "h100"},
    "training": {"global_batch_size": 8, "sequence_length": 4096},
}
NAMES = {
    *("train", "sh", "nodes", "txt", "DATA", "ARGS", "job", "sbatch", "env", "node", "partition", "constraint", "rank"),
    *("RoPE", "h", "a", "tp", "cp", "dp", "pp", "model", "token", "ms", "s", "vpp", "layers", "stages", "chips"),
    *("megatron", "lm", "core", "llama", "b", "plan", "yaml", "spec", "out"),
}
"""What stays as it is: files, commands, names of frameworks and fields, units."""


def english(text: str) -> list[str]:
    """The words that are no names; flags are left out."""
    words = re.findall(r"[A-Za-z]+", re.sub(r"--[\w-]+", "", text))
    return [word for word in dict.fromkeys(words) if word not in NAMES]


def test_notes_are_in_chinese_and_files_are_not() -> None:
    told = {name: export(MIXED, "-o", name, "--job", "sbatch", "--lang", name).stdout for name in ("zh", "en")}
    assert told["zh"].startswith("zh：train.sh")
    assert english(told["zh"].removeprefix("zh")) == []
    for file in Path("en").iterdir():
        assert file.read_bytes() == (Path("zh") / file.name).read_bytes()


def test_the_text_has_chinese_around_english_files() -> None:
    chinese, plain = (export(MIXED, "--lang", name).stdout.splitlines() for name in ("zh", "en"))
    assert "# 说明" in chinese
    assert [line for line in chinese if not line.startswith("#")] == [
        line for line in plain if not line.startswith("#")
    ]


def test_json_is_the_same_in_both_languages() -> None:
    for plan in (MIXED, UNEVEN):
        assert export(plan, "--json", "--lang", "zh").stdout == export(plan, "--json", "--lang", "en").stdout


def test_a_refusal_and_its_reasons_are_in_chinese() -> None:
    said = export(UNEVEN, "--lang", "zh", target="megatron-core-0.12").stdout.splitlines()
    assert said[0] == "megatron-core-0.12 不能运行该方案："
    assert english(said[1]) == []
    assert [english(line) for line in said if not line.startswith("  - ")] == [[]] * 3


def test_the_rank_map_is_in_chinese_and_in_columns() -> None:
    said = run("ranks", write("spec.yaml", CLUSTER), "--plan", write("plan.yaml", MIXED), "--lang", "zh").stdout
    assert english(re.sub("rank 顺序 tp-cp-ep-dp-pp", "", said)) == []
    assert max(map(cell_len, said.splitlines())) <= 80
    rows = [line for line in said.splitlines() if line.startswith(("节点", "0", "1"))]
    assert (
        len({cell_len(row[: row.index(cell)]) for row, cell in zip(rows, ("芯片", "h100", "a800"), strict=True)}) == 1
    )


@pytest.mark.parametrize(
    "asked",
    [("--to", "megatron-l"), ("--to", "megatron-lm", "--plan-rank", "3"), ("--to", "deepspeed", "--job", "ssh")],
)
def test_errors_are_in_chinese(asked: tuple[str, ...]) -> None:
    files = write("spec.yaml", CLUSTER), "--plan", write("plan.yaml", EVEN)
    told = run("export", *files, *asked, "--lang", "zh")
    assert told.exit_code in (2, 3)
    assert re.search("[\u4e00-\u9fff]{4}", told.output)


def test_the_library_speaks_as_the_command_does() -> None:
    problem = cpsolver.make_problem(ALONE)
    plan = cpsolver.evaluate(problem, tp=2, pp=1).strategy
    with speaking(CHINESE):
        chinese = cpsolver.export(problem, plan, "megatron-lm")
    assert chinese.files == cpsolver.export(problem, plan, "megatron-lm").files
    assert any("检查点" in note for note in chinese.notes)
