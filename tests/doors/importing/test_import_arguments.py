"""Arguments as argparse reads them, with argparse itself for comparison, and the devices of a command."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpsolver.doors.importing.arguments import Arguments, table
from cpsolver.doors.importing.command import devices, find_training
from cpsolver.doors.importing.imported import ImportOptions, import_source
from cpsolver.doors.importing.shell import read_script
from cpsolver.doors.importing.variables import ShellVariables
from cpsolver.inputs.errors import InputError
from tests.support.command import in_tmp  # noqa: F401
from tests.support.scripts import LLAMA, STEP, imported, torchrun

ONES = ("num-layers", "hidden-size", "ffn-hidden-size", "seq-length", "kv-channels")
FLAGS = ("bf16", "swiglu", "use-flash-attn", "sequence-parallel")
TOKENS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(ONES), st.integers(1, 99)).map(lambda pair: [f"--{pair[0]}", str(pair[1])]),
        st.tuples(st.sampled_from(ONES), st.integers(1, 99)).map(lambda pair: [f"--{pair[0]}={pair[1]}"]),
        st.sampled_from(FLAGS).map(lambda name: [f"--{name}"]),
        st.lists(st.sampled_from(["core_attn", "mlp", "layernorm"]), min_size=1, max_size=3).map(
            lambda names: ["--recompute-modules", *names]
        ),
    ),
    max_size=8,
).map(lambda groups: [token for group in groups for token in group])


def oracle() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(exit_on_error=False)
    for name in ONES:
        parser.add_argument(f"--{name}", type=int)
    for name in FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--recompute-modules", nargs="+", default=[])
    return parser


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TOKENS)
def test_values_are_those_of_argparse(tokens: list[str]) -> None:
    wanted = oracle().parse_args(tokens)
    read = Arguments(tokens, ShellVariables())
    for name in ONES:
        assert read.number(name) == getattr(wanted, name.replace("-", "_"))
    for name in FLAGS:
        assert read.has(name) == getattr(wanted, name.replace("-", "_"))
    assert list(read.values("recompute-modules")) == wanted.recompute_modules
    assert not read.troubles
    assert not read.loose


@pytest.mark.parametrize(
    ("tokens", "name", "value"),
    [
        (["--tensor-model-parallel", "2"], "tensor-model-parallel-size", 2),
        (["--seq-len=8"], "seq-length", 8),
        (["--num-layers", "1", "--num-layers", "2"], "num-layers", 2),
    ],
)
def test_starts_of_names_and_the_last_value(tokens: list[str], name: str, value: int) -> None:
    assert Arguments(tokens, ShellVariables()).number(name) == value


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["--num-layers"], "has no value"),
        (["--num-layers", "--bf16"], "has no value"),
        (["--num-layers", "9" * 30], "must be at most 1,048,576"),
        (["--num-layers", "3.0"], "must be a whole number"),
    ],
)
def test_values_that_cannot_be(tokens: list[str], said: str) -> None:
    arguments = Arguments(tokens, ShellVariables(), "run.sh", 7)
    assert arguments.number("num-layers") is None
    assert [trouble.message for trouble in arguments.troubles] == [said]
    assert arguments.troubles[0].place == "run.sh:7"


MODEL = "--num-layers 2 --hidden-size 8"


@pytest.mark.parametrize(
    ("text", "program", "total", "per_node"),
    [
        (f"torchrun --nproc_per_node=8 --nnodes 2 pretrain_gpt.py {MODEL}", "pretrain_gpt.py", 16, 8),
        (f"torchrun --nproc-per-node 4 pretrain_gpt.py {MODEL}", "pretrain_gpt.py", 4, 4),
        (f"python3 -m torch.distributed.launch --nproc_per_node 8 a/train.py {MODEL}", "a/train.py", 8, 8),
        (f"python -m torch.distributed.run --nproc_per_node 2 --nnodes 3 -m pkg.train {MODEL}", "pkg.train", 6, 2),
        (f"deepspeed --num_nodes 2 --num_gpus 8 train.py {MODEL}", "train.py", 16, 8),
        (f"python train.py {MODEL} --nnodes 2 --nproc-per-node 8", "train.py", 16, 8),
        (f"msrun --worker_num 16 --local_worker_num 8 train.py {MODEL}", "train.py", 16, 8),
        (f"mpirun -np 32 python train.py {MODEL}", "train.py", 32, None),
        (f"srun -N 4 --ntasks-per-node=8 python -u train.py {MODEL}", "train.py", 32, 8),
        (f"#SBATCH --nodes=2 --gpus-per-node=8\nsrun python train.py {MODEL}", "train.py", 16, 8),
        (f"srun -l bash -c 'torchrun --nproc_per_node 8 --nnodes 2 train.py {MODEL}'", "train.py", 16, 8),
        (f'CMD="torchrun --nproc_per_node 8 train.py {MODEL}"\neval $CMD', "train.py", 8, 8),
        (f"run() {{\n  torchrun --nproc_per_node 8 train.py {MODEL}\n}}\nrun", "train.py", 8, 8),
        (f"nohup torchrun --nproc_per_node 8 train.py {MODEL} > log 2>&1 &", "train.py", 8, 8),
        (f"cd x && CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2 train.py {MODEL}", "train.py", 2, 2),
    ],
)
def test_the_training_command_and_its_devices(text: str, program: str, total: int, per_node: int | None) -> None:
    script = read_script(text, None, {})
    training = find_training(script, None)
    found = devices(script, training, text)
    assert (training.program, found.total, found.per_node) == (program, total, per_node)
    assert training.tokens[:4] == tuple(MODEL.split())


@pytest.mark.parametrize("text", ["", "echo a", "python prepare.py --input x", "torchrun train.py --config c.yaml"])
def test_a_script_without_a_training_command(text: str) -> None:
    with pytest.raises(InputError, match="has no training command"):
        find_training(read_script(text, None, {}), "run.sh")


VALUES = ["0", "1", "2", "3", "4", "8", "64", "x", "", "1,2", "[[1],[1]]", "full", "block", "a2a", "Et|tL", "-1", "0.5"]
OF_DEVICES = {"nnodes", "nproc_per_node", "nproc-per-node"}
NAMES = sorted(set(table()["used"]) - OF_DEVICES)
PAIRS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=6)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PAIRS)
def test_any_arguments_are_imported_or_refused(pairs: list[tuple[str, str]]) -> None:
    more = " ".join(f"--{name} {value}" for name, value in pairs if name not in table()["flag"])
    flags = " ".join(f"--{name}" for name, _ in pairs if name in table()["flag"])
    sizes = "--num-layers 8 --hidden-size 64 --num-attention-heads 8 --vocab-size 100 --seq-length 64 --bf16"
    sizes += " --max-position-embeddings 64"
    Path("train.sh").write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {sizes} {more} {flags}\n")
    with suppress(InputError):
        found = import_source("train.sh", ImportOptions(chip="h100"))
        assert found.strategy is None or found.strategy.devices == 8


def test_names_are_whole() -> None:
    """No line of the table breaks inside a name, and none has its dashes."""
    for heading in ("flag", "one", "optional", "many", "used"):
        assert not [name for name in table()[heading] if name.startswith("-") or name.endswith("-")], heading


@pytest.mark.parametrize("value", ["nan", "inf", "half"])
def test_numbers_are_finite(value: str) -> None:
    with pytest.raises(InputError, match=r"--hidden-dropout = .*must be a number"):
        imported(torchrun(f"{LLAMA} {STEP} --hidden-dropout {value}"))
