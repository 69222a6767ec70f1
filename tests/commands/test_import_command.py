"""`apss-cp import` from end to end, and what it says of scripts that contradict themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpsolver.doors.importing.arguments import Arguments, table
from cpsolver.doors.importing.output import wrapped
from cpsolver.doors.importing.variables import ShellVariables
from tests.support.checkout import ROOT
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.scripts import GPT, LLAMA, STEP, torchrun

EXAMPLE = str(ROOT / "examples" / "mindspeed-llama-7b.sh")
DOCUMENT = ROOT / "docs" / "import.md"


def errors(text: str, *options: str) -> str:
    """The errors of an import that fails."""
    result = run("import", write("train.sh", text), *options)
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.full
def test_the_example_is_imported_evaluated_and_beaten() -> None:
    result = run("import", EXAMPLE, "--chip", "ascend_910b", "-o", "spec.yaml", "--strategy-output", "plan.yaml")
    assert result.exit_code == 0, result.output
    for said in ("llama-7b", "8 x ascend_910b", "tp 1, pp 8, dp 1, micro batch 4", "apss-cp evaluate spec.yaml"):
        assert said in result.output
    today = run("evaluate", "spec.yaml", "--strategy", "plan.yaml", "--json")
    assert today.exit_code == 0, today.output
    best = run("solve", "spec.yaml", "--top", "1", "--json")
    assert best.exit_code == 0, best.output
    before = json.loads(today.stdout)["plans"][0]["step_time_s"]
    plan = json.loads(best.stdout)["plans"][0]
    after = plan["step_time_s"]
    assert after < before
    saved = f"{(1 - after / before) * 100:.1f} %"
    told = DOCUMENT.read_text(encoding="utf-8")
    assert f"{before:.1f} s" in told
    assert f"{after:.1f} s" in told
    assert saved in told, saved


def test_without_files_the_spec_goes_to_stdout_and_can_be_solved() -> None:
    result = run("import", EXAMPLE, "--chip", "ascend_910b")
    assert result.exit_code == 0
    assert result.stdout.startswith("# Imported from")
    assert "today's plan" in result.stderr
    assert run("solve", "-", "--top", "1", stdin=result.stdout).exit_code == 0


def test_standard_input_and_json() -> None:
    result = run("import", "-", "--chip", "h100", "--json", stdin=torchrun(GPT))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["spec"]["cluster"] == {"num_gpus": 8, "gpus_per_node": 8, "chips": "h100"}
    assert told["strategy"]["dp"] == 8
    assert told["model"]["parameters"] == 1_313_626_112
    bad = run("import", "-", "--json", stdin="echo nothing")
    assert bad.exit_code == 2
    assert "no training command" in json.loads(bad.stdout)["troubles"][0]["message"]


def test_without_a_chip_it_is_left_to_fill_in() -> None:
    result = run("import", EXAMPLE, "-o", "spec.yaml", "--strategy-output", "plan.yaml")
    assert result.exit_code == 0
    assert "chips: fill-me-in  # TO FILL IN" in Path("spec.yaml").read_text(encoding="utf-8")
    assert "to fill in in the spec" in result.output


def test_files_are_not_replaced_without_force() -> None:
    write("spec.yaml", "mine")
    assert run("import", EXAMPLE, "--chip", "ascend_910b", "-o", "spec.yaml").exit_code == 2
    assert Path("spec.yaml").read_text(encoding="utf-8") == "mine"
    assert run("import", EXAMPLE, "--chip", "ascend_910b", "-o", "spec.yaml", "--force").exit_code == 0
    assert run("import", EXAMPLE, "-o", "a.yaml", "--strategy-output", "a.yaml").exit_code == 2


def test_a_script_is_never_run() -> None:
    text = f"touch ran\nA=$(touch ran2)\n`touch ran3`\n{torchrun(GPT)}\ntouch ran4\n"
    assert run("import", write("train.sh", text), "--chip", "h100").exit_code == 0
    assert not list(Path().glob("ran*"))


def test_options_replace_what_the_script_says() -> None:
    options = ("--num-gpus", "32", "--gpus-per-node", "4", "--stack", "nemo", "--launcher", "any", "--chip", "h100")
    result = run("import", write("train.sh", torchrun(GPT)), *options, "--json")
    told = json.loads(result.stdout)
    assert told["strategy"]["dp"] == 32
    assert told["spec"]["cluster"]["gpus_per_node"] == 4
    assert told["spec"]["stack"] == "nemo"
    assert "launcher" not in told["spec"]
    assert "unknown" in run("import", "train.sh", "--stack", "nemmo").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--global-batch-size 60", "60 is not a multiple of micro batch 1 x dp 8 = 8"),
        ("--tensor-model-parallel-size 3", "8 devices are not a multiple of tp 3 x pp 1 x cp 1 = 3"),
        ("--tensor-model-parallel-size 3", "32 heads are not a multiple of tp 3"),
        ("--tensor-model-parallel-size 3", "11008 is not a multiple of tp 3"),
        ("--pipeline-model-parallel-size 3", "32 layers are not a multiple of --pipeline-model-parallel-size 3"),
        ("--num-layers 30 --pipeline-model-parallel-size 4 --account-for-loss-in-pipeline-split", "31 layers"),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 "
            "--num-virtual-stages-per-pipeline-rank 4",
            "--num-layers-per-virtual-pipeline-stage: excludes --num-virtual-stages-per-pipeline-rank",
        ),
        ("--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "does not divide the 16 layers"),
        (
            "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4 --global-batch-size 12",
            "6 microbatches are not a multiple of pp 4",
        ),
        ("--num-virtual-stages-per-pipeline-rank 4", "interleaving needs a pipeline"),
        ("--pipeline-model-parallel-size 2 --num-layer-list 16,17", "has 33 layers, --num-layers is 32"),
        ("--pipeline-model-parallel-size 2 --num-layer-list 8,8,16", "not a multiple of pipeline size 2"),
        ("--pipeline-model-parallel-size 2 --num-layer-list a,b", "is not followed"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ex|L", "is not followed"),
        (
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 8 "
            "--account-for-loss-in-pipeline-split",
            "excludes --account-for-loss-in-pipeline-split",
        ),
        ("--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1", "31 layers are left for 3 stages"),
        ("--context-parallel-size 8 --seq-length 4100", "4100 is not a multiple of 2 x cp 8 = 16"),
        ("--context-parallel-size 2 --cp-comm-type ring", "is not one of the choices"),
        ("--context-parallel-size 4 --cp-comm-type a2a+p2p", "--hierarchical-context-parallel-sizes: must be given"),
        ("--fp16", "--bf16: excludes --fp16"),
        ("--expert-model-parallel-size 2", "the model has no experts"),
        ("--num-experts 8 --expert-model-parallel-size 3", "8 experts are not a multiple of ep 3"),
        ("--num-experts 64 --expert-model-parallel-size 16", "does not divide the devices of a stage"),
        ("--recompute-granularity full", "--recompute-method: must be given"),
        ("--recompute-granularity full --recompute-method block", "--recompute-num-layers: must be given"),
        ("--recompute-granularity selective --recompute-method block", "goes with --recompute-granularity full only"),
        ("--recompute-granularity half", "is not one of the choices"),
        ("--num-distributed-optimizer-instances 3", "does not divide dp x cp = 8"),
        ("--optimizer sgd", "is not planned for"),
        ("--tensor-model-paralel-size 2", "did you mean '--tensor-model-parallel-size'?"),
        ("--tensor_model_parallel_size 2", "did you mean '--tensor-model-parallel-size'?"),
        ("--recompute-m block", "is the start of several arguments"),
        ("--micro-batch-size two", "must be a whole number"),
        ("--micro-batch-size 0", "must be at least 1"),
        ("--micro-batch-size $MBS", "needs MBS, which is not set in the script (line 1) (allowed: --set MBS=VALUE)"),
        ("--global-batch-size $(cat batch)", "is the output of a command, which is not run (line 1)"),
        ("--kv-channels 128 --group-query-attention --num-query-groups 3", "heads 32 is not a multiple of kv_heads 3"),
        ("--full-attention-interval 4", "--linear-key-head-dim: must be given with layers of linear attention"),
    ],
)
def test_a_contradiction_is_an_error(arguments: str, said: str) -> None:
    assert said in errors(torchrun(f"{LLAMA} {STEP} {arguments}"), "--chip", "h100")


def test_a_shape_that_is_wrong_is_told_without_the_words_of_the_checking_library() -> None:
    told = errors(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 30 "
        "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --bf16 "
        "--vocab-size 32000\n"
    )
    assert "hidden 4096 is not a multiple of heads 30" in told
    assert "Value error" not in told


def test_long_lines_are_wrapped_at_a_terminal_and_commands_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    told = wrapped("a: script\n  model        one two three four five six seven\n\nnext:\n  apss-cp solve " + "x" * 40)
    assert told.split("\n") == [
        "a: script",
        "  model        one two three four five",
        "               six seven",
        "",
        "next:",
        "  apss-cp solve " + "x" * 40,
    ]


def test_noop_layers_must_be_places_of_layers() -> None:
    told = errors(torchrun(f"{LLAMA} {STEP} --noop-layers 32,33 --pipeline-model-parallel-size 2"), "--chip", "h100")
    assert "must be different places below --num-layers" in told


def test_all_problems_are_listed_at_once_with_line_and_file() -> None:
    told = errors("\n\n" + torchrun(f"{LLAMA} {STEP} --tensor-model-parallel-size 3 --fp16 --global-batch-size x"))
    assert told.count("error:") == 5
    assert told.count("train.sh:3") == 5


def test_a_variable_may_be_given() -> None:
    write("train.sh", torchrun(f"{LLAMA} {STEP} --tensor-model-parallel-size $TP", nodes=1))
    assert "needs TP" in run("import", "train.sh", "--chip", "h100").output
    result = run("import", "train.sh", "--chip", "h100", "--set", "TP=4", "--json")
    assert json.loads(result.stdout)["strategy"]["tp"] == 4
    assert run("import", "train.sh", "--set", "TP").exit_code == 2


def test_batch_and_sequence_may_be_replaced() -> None:
    write("train.sh", torchrun(f"{LLAMA} {STEP}"))
    result = run(
        "import", "train.sh", "--chip", "h100", "--global-batch-size", "16", "--sequence-length", "512", "--json"
    )
    assert json.loads(result.stdout)["spec"]["training"]["global_batch_size"] == 16
    assert json.loads(result.stdout)["spec"]["training"]["sequence_length"] == 512
    assert "not a multiple" in run("import", "train.sh", "--chip", "h100", "--global-batch-size", "15").output


def test_devices_that_nobody_tells_are_an_error() -> None:
    told = errors(f"python pretrain_gpt.py {GPT}")
    assert "neither the launcher nor the arguments say how many devices train" in told
    told = errors(f"torchrun --nproc_per_node 8 --nnodes $N pretrain_gpt.py {GPT}")
    assert "--nnodes needs N, which is not set in the script (line 1)" in told


def test_the_vocabulary_may_come_from_a_like_model_a_tokenizer_or_an_option() -> None:
    bare = LLAMA.replace("--vocab-size 32000", "")
    told = errors(torchrun(f"{bare} {STEP}"), "--chip", "h100")
    assert "models of this shape have 32,000 (llama2-7b), 64,000 (baichuan-7b)" in told
    result = run("import", write("llama.sh", torchrun(f"{bare} {STEP}")), "--chip", "h100")
    assert "no --vocab-size: taken as llama2-7b's, 32,000" in result.stderr
    odd = GPT.replace("--vocab-size 50257", "")
    assert "the tokenizer has it" in errors(torchrun(odd), "--chip", "h100")
    assert run("import", "train.sh", "--chip", "h100", "--vocab-size", "51200").exit_code == 0
    result = run("import", write("train.sh", torchrun(f"{odd} --tokenizer-type GPT2BPETokenizer")), "--chip", "h100")
    assert "taken as GPT2BPETokenizer's, 50,257" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--pipeline-model-parallel-size 2 --schedules-method seqpipe", "that schedule is not known here"),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*5|t*11|t*9|t*7L'",
            "chunks of 5, 9 layers",
        ),
        (
            "--noop-layers 9 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
            "chunks of 7, 8 layers",
        ),
        ("--lora-target-modules linear_qkv --multi-latent-attention", "LoRA"),
        ("--optimized-pipeline --manual-mbs 1,2,3", "--manual-mbs has 3 sizes, 6 in all: 8 are needed, 8 in all"),
        ("--tp-2d", "two dimensions"),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 --custom-pipeline-layers 16,16 "
            "--recompute-granularity full --recompute-method block --custom-pipeline-recompute-layers 8,8",
            "4 chunks a stage: which layers of each is not known",
        ),
        ("--recompute-granularity selective --recompute-modules gdp_qkv", "recompute module gdp_qkv is not known"),
    ],
)
def test_a_plan_without_words_leaves_the_spec(arguments: str, reason: str) -> None:
    write("train.sh", torchrun(f"{LLAMA} {STEP} {arguments}"))
    result = run("import", "train.sh", "--chip", "h100", "-o", "spec.yaml")
    assert result.exit_code == 0, result.output
    assert reason in result.output
    assert run("import", "train.sh", "--chip", "h100", "--strategy-output", "plan.yaml").exit_code == 2
    assert not Path("plan.yaml").exists()


def test_arguments_that_no_plan_knows_are_listed_and_harmless_ones_are_not() -> None:
    more = "--overlap-param-gather --foo-bar 1 2 --wandb-project x --lr 1e-4 --data-path d"
    told = json.loads(run("import", write("train.sh", torchrun(f"{GPT} {more}")), "--chip", "h100", "--json").stdout)
    assert told["unused"] == ["--overlap-param-gather"]
    assert told["unknown"] == ["--foo-bar"]


def test_more_than_one_training_command_is_told() -> None:
    text = torchrun(GPT) + torchrun(f"{GPT} --num-layers 12")
    told = json.loads(run("import", write("train.sh", text), "--chip", "h100", "--json").stdout)
    assert any("training commands in lines 2 too" in note for note in told["notes"])
    text = f"if [ -d x ]; then\n  {torchrun(GPT)}fi\n"
    told = json.loads(run("import", write("train.sh", text), "--chip", "h100", "--json").stdout)
    assert any("stands in a conditional" in note for note in told["notes"])


def test_the_last_value_counts_as_argparse_has_it() -> None:
    given = Arguments(["--seq-length", "1", "--seq-len=2", "--bf16", "x", "--lr", "-1"], ShellVariables())
    assert given.number("seq-length") == 2
    assert given.loose == ["x"]
    assert given.given["lr"] == ("-1",)
    assert not given.troubles


def test_the_table_of_arguments_is_sound() -> None:
    named = table()
    kinds = [named[kind] for kind in ("flag", "one", "many")]
    assert sum(map(len, kinds)) == len(frozenset().union(*kinds))
    source = ROOT / "cpsolver" / "doors" / "importing"
    text = "".join(path.read_text(encoding="utf-8") for path in source.glob("*.py"))
    assert not [name for name in named["used"] if f'"{name}"' not in text]
