"""The tally of public training scripts: what counts, what helps, and the comparison with bash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.corpus import documented, made_up, read, report, scripts
from benchmarks.corpus_bash import bash_runs, compared
from benchmarks.corpus_plans import judged, round_trips
from tests.support.scripts import LLAMA, STEP, torchrun

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
SIZED = "SIZE=$1\nif [ $SIZE = 7B ]; then L=32; fi\nset -e\nmissing-program\n" + torchrun(LLAMA + STEP).replace(
    "--num-layers 32", "--num-layers $L"
)
CHIPS = ("h100",)
BLOOM = (
    "--num-layers 30 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 "
    "--embed-layernorm --position-embedding-type alibi --pad-vocab-size-to 250880 --micro-batch-size 2 --bf16 "
    "--global-batch-size 256 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --checkpoint-activations "
    "--checkpoint-num-layers 3 --deepspeed --deepspeed_config ds.json --zero-stage 1"
)
"""Arguments as those of a BLOOM of 7 B, on BigScience's fork."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with a script that needs an argument, the same once more, and one that trains no decoder."""
    (tmp_path / "docs.md").write_text("```\nbash run.sh \\\n  7B\n```\n", encoding="utf-8")
    (tmp_path / "run.sh").write_text(SIZED, encoding="utf-8")
    (tmp_path / "same.sh").write_text(SIZED, encoding="utf-8")
    (tmp_path / "t5.sh").write_text(torchrun(LLAMA + STEP).replace("pretrain_gpt", "pretrain_t5"), encoding="utf-8")
    (tmp_path / "ls.sh").write_text("ls\n", encoding="utf-8")
    return tmp_path


def test_each_text_counts_once_with_its_documented_arguments(repository: Path) -> None:
    assert [file.name for file in scripts(repository)] == ["run.sh", "t5.sh"]
    assert documented(repository)["run.sh"] == [("7B",)]
    assert made_up(SIZED) == ("7B",)
    outcomes = [read(file, CHIPS, documented(repository)[file.name]) for file in scripts(repository)]
    assert [outcome.what for outcome in outcomes] == ["spec and plan", "out of scope"]
    assert report("here", outcomes) == "| here | 1 | 1 | 0 | 0 | 1 | 100% |"


@needs_bash
def test_what_bash_starts_is_noted_and_compared(repository: Path) -> None:
    file = repository / "run.sh"
    assert bash_runs(file, ("7B",)) == []  # it stops where a program is missing
    assert bash_runs(file, ("7B",), stops=False)[0][-2:] == ["64", "--bf16"]
    lines = list(compared([read(file, CHIPS, [("7B",)])], repository))
    assert lines == ["compared with bash: 1 agrees"]


def test_refusals_of_plans_say_who_is_right(tmp_path: Path) -> None:
    """LLaMA 7B on few devices of 80 GB. One: its weights and the optimizer are more. Two, as it stands (whole states on
    each stage): with what a note explains, with devices made up, which no more of would help, with sequences as its
    data, likewise. Eight: legal. And what is legal with more devices than were made up, or with shorter sequences."""
    one = torchrun(LLAMA + STEP).replace("--nproc_per_node 8", "--nproc_per_node 1")
    two = torchrun(LLAMA + STEP).replace("--nproc_per_node 8", "--nproc_per_node 2")
    short = "--is-instruction-dataset --no-pad-to-seq-lengths"
    deep = LLAMA.replace("--num-layers 32", "--num-layers 52")
    again = (
        "--use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    )
    texts = {
        "a": one,
        "b": two,
        "c": two.replace("--bf16", "--bf16 --recompute-norm"),
        "d": two.replace("_node 2", "_node $N"),
        "e": two.replace("--bf16", f"--bf16 {short}"),
        "f": torchrun(LLAMA + STEP + "--tensor-model-parallel-size 8 --sequence-parallel"),
        "g": torchrun(deep + STEP + again).replace("_node 8", "_node $N"),
        "h": torchrun(
            LLAMA + STEP.replace("seq-length 4096", "seq-length 65536") + f"--use-distributed-optimizer {short}"
        ),
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.sh").write_text(text, encoding="utf-8")
    lines = list(judged([read(tmp_path / f"{name}.sh", CHIPS, []) for name in texts], tmp_path))
    said = {line.split("\t")[1]: line.split("\t")[3].split(",")[0] for line in lines if line.startswith("refused\t")}
    whose = {"a": "the rule", "b": "the rule", "c": "the script", "d": "the rule", "e": "the rule"}
    assert said == {f"{name}.sh": f"refused: {right}" for name, right in whose.items()}
    assert [line for line in lines if line[:5] in ("rules", "judge", "settl")] == [
        "rules: 8 plans, 7 refused by a rule as they stand (87.5%)",
        "judged: 8 plans, 5 refused (62.5%) whatever they leave open",
        "settled: 4 that leave nothing open, 3 refused (75.0%)",
    ]
    states = "refused: the rule, as states and what backward passes need are more than a device holds"
    wider = "legal on more devices than its default, or with shorter sequences, which the script leaves open"
    assert {line[6:] for line in lines} >= {
        "legal",
        "refused: the rule, as weights and optimizer are more than all devices hold",
        states,
        f"{states}; it leaves open: devices",
        f"{states}; it leaves open: sequences as long as their data",
        f"{wider}; it leaves open: devices",
        f"{wider}; it leaves open: sequences as long as their data",
    }


def test_nodes_of_the_environment_are_judged_on_more_than_their_default(tmp_path: Path) -> None:
    """LLaMA 7B on one device of 80 GB, its states sharded: legal on more, where the script leaves that open. Not
    sharded it is refused on any number, and with a number of its own as it stands."""
    open_ = "NNODES=${WORLD_SIZE:-1}\n" + torchrun(LLAMA + STEP + "--use-distributed-optimizer", 1)
    texts = {
        "a": open_.replace("--nnodes=1", "--nnodes=$NNODES"),
        "b": open_.replace("--nnodes=1", "--nnodes=$NNODES").replace("--use-distributed-optimizer", ""),
        "c": open_,
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.sh").write_text(text, encoding="utf-8")
    lines = list(judged([read(tmp_path / f"{name}.sh", CHIPS, []) for name in texts], tmp_path))
    assert [line.split("\t")[1] for line in lines if line.startswith("refused\t")] == ["b.sh", "c.sh"]
    assert "settled: 3 that leave nothing open, 2 refused (66.7%)" in lines
    assert any("legal on more devices than its default" in line for line in lines)


def test_a_plan_that_is_exported_and_imported_is_the_same(tmp_path: Path) -> None:
    """ALiBi goes to the fork of Megatron that has it, if it came from there."""
    (tmp_path / "a.sh").write_text(torchrun(LLAMA + STEP), encoding="utf-8")
    alibi = torchrun(LLAMA + STEP).replace("--position-embedding-type rope", "--position-embedding-type alibi")
    (tmp_path / "b.sh").write_text(alibi, encoding="utf-8")
    (tmp_path / "c.sh").write_text(torchrun(BLOOM), encoding="utf-8")
    lines = list(round_trips([read(tmp_path / f"{name}.sh", CHIPS, []) for name in "abc"], tmp_path))
    assert lines[0].startswith("told\tb.sh\tmodel.position")
    assert lines[1].startswith("round trip: 2 same, 1 told; 0.0%")
