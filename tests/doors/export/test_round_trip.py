"""What is exported is read back as the same plan: exporters and the import agree on what the options mean."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import CannotExpress
from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.inputs.errors import InputError
from cpsolver.plans.strategy import RecomputeKind, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.resolve import resolve
from cpsolver.profiles.framework import load_launcher
from cpsolver.rules import structure_violations
from cpsolver.spec.spec import parse_spec
from models_zoo import load_architecture
from tests.support.problems import problem_of, strategy_of
from tests.support.selection import only

TARGETS = ("megatron-lm", "megatron-core-0.13", "megatron-core-0.12", "mindspeed-llm", "loongforge")
PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "chunks": ("llama2-70b", "h100:20,20,20,20", {"tp": 8, "dp": 2, "vpp": 5, "flags": "sfz"}),
    "block, a number of each chunk": (
        "llama2-7b",
        "h100:16,16",
        {"dp": 2, "vpp": 4, "recompute": "block", "amount": 3},
    ),
    "uniform": ("llama2-7b", "h100:16,16", {"tp": 2, "dp": 2, "recompute": "uniform", "amount": 4, "flags": "f"}),
    "first and last": ("llama2-7b", "h100:7,9,9,7", {"dp": 2, "flags": "fz"}),
    "head as a layer": ("llama3.1-405b", "h100:16,16,16,16,16,16,16,14", {"tp": 8, "vpp": 1, "flags": "sf"}),
    "embedding and head in layers' places": ("llama3.1-405b", "h100:31,32,32,31", {"tp": 8, "dp": 2, "vpp": 4}),
    "head in three layers' places": ("kimi-k2-1t", "h100:16,16,16,13", {"dp": 16, "vpp": 4, "ep": 16}),
    "ring of all-to-alls": ("llama2-70b", "h100:80", {"tp": 2, "cp": 8, "ulysses": 4, "dp": 2, "flags": "sfz"}),
    "sharding groups": ("llama2-7b", "h100:32", {"dp": 8, "flags": "fz", "sharding_group": 4}),
    "experts": ("mixtral-8x7b", "h100:16,16", {"tp": 4, "dp": 4, "ep": 8, "etp": 1, "flags": "sfz"}),
    "experts overlapped": ("mixtral-8x7b", "h100:16,16", {"dp": 8, "vpp": 2, "ep": 8, "expert_overlap": True}),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back(name: str, target: str, tmp_path: Path) -> None:
    model, groups, more = PLANS[name]
    wanted = strategy_of(groups, **more)
    if any(wanted.slots) and load_launcher(target).uneven_interleaved != "any":
        pytest.skip("its launcher profile has no chunks with the embedding or the head in a layer's place")
    if wanted.expert_overlap and not load_launcher(target).expert_overlap:
        pytest.skip("its launcher profile does not overlap experts' all-to-alls")
    problem = problem_of(model=model, gpus=wanted.devices, batch=64, sequence=4096)
    script = tmp_path / "train.sh"
    for name_of_file, text in launch_of(problem, wanted, target).files.items():
        (tmp_path / name_of_file).write_text(text, encoding="utf-8")
    vocabulary = load_architecture(model).vocab
    options = ImportOptions("h100", wanted.devices, min(8, wanted.devices), vocabulary, launcher="any")
    found = import_source(str(script), options)
    assert found.strategy == wanted, found.refusals
    assert found.spec["model"] == model
    assert found.spec["training"]["global_batch_size"] == 64


@pytest.mark.parametrize("target", TARGETS)
def test_experts_one_after_another_come_back(target: str, tmp_path: Path) -> None:
    model, groups, more = PLANS["experts"]
    wanted, training = strategy_of(groups, **more), {"moe_grouped_gemm": False}
    problem = problem_of(model=model, gpus=wanted.devices, batch=64, sequence=4096, training=training)
    for name_of_file, text in launch_of(problem, wanted, target).files.items():
        (tmp_path / name_of_file).write_text(text, encoding="utf-8")
    options = ImportOptions("h100", wanted.devices, 8, problem.model.vocab, launcher="any")
    found = import_source(str(tmp_path / "train.sh"), options)
    assert found.strategy == wanted, found.refusals
    assert found.spec["training"]["moe_grouped_gemm"] is False


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_of_megatron_bridge_comes_back(name: str, tmp_path: Path) -> None:
    """Its file of Python is read as text."""
    model, groups, more = PLANS[name]
    wanted = strategy_of(groups, **more)
    problem = problem_of(model=model, gpus=wanted.devices, batch=64, sequence=4096)
    for name_of_file, text in launch_of(problem, wanted, "megatron-bridge").files.items():
        (tmp_path / name_of_file).write_text(text, encoding="utf-8")
    options = ImportOptions("h100", wanted.devices, min(8, wanted.devices), launcher="any")
    found = import_source(str(tmp_path / "plan.py"), options)
    assert found.strategy == wanted, found.refusals
    assert found.spec["model"] == model
    assert (found.spec["training"]["global_batch_size"], found.spec["training"]["sequence_length"]) == (64, 4096)


@pytest.mark.parametrize(
    ("model", "groups", "more"),
    [
        ("longcat-flash-560b", "ascend_910b:14,14", {"tp": 8, "dp": 4, "vpp": 7, "ep": 32, "flags": "sfz"}),
        ("deepseek-v4-flash-284b", "ascend_910b:22,21", {"tp": 2, "dp": 8, "ep": 16, "flags": "sfz"}),
        (
            "deepseek-v3.2-671b",
            "ascend_910b:31,30",
            {"dp": 16, "ep": 16, "recompute": "uniform", "amount": 1, "flags": "fz"},
        ),
    ],
)
def test_models_that_mindspeed_has_layers_of_its_own_for_come_back(
    model: str, groups: str, more: dict[str, Any], tmp_path: Path
) -> None:
    wanted = strategy_of(groups, **more)
    problem = problem_of({"ascend_910b": -1}, model, wanted.devices, 16, 64, 4096)
    script = tmp_path / "train.sh"
    script.write_text(launch_of(problem, wanted, "mindspeed-llm").files["train.sh"], encoding="utf-8")
    found = import_source(str(script), ImportOptions("ascend_910b", wanted.devices, 16, problem.model.vocab))
    assert found.strategy == wanted, found.refusals
    assert found.spec["model"] == model
    assert found.spec["launcher"] == "mindspeed-llm"
    assert not any("--spec" in note for note in found.notes)


MODELS = ("llama2-7b", "mixtral-8x7b")
CHIPS = {"h800": 64, "a800": 64}


def problem_with(model: str, devices: int) -> Problem:
    """On two chip types of the catalogue."""
    cluster = {"num_gpus": devices, "chips": CHIPS}
    training = {"global_batch_size": 64, "sequence_length": 4096}
    return resolve(parse_spec({"model": model, "cluster": cluster, "training": training}))


def drawn(rng: random.Random, model: str) -> Strategy:
    """A plan on nodes of 8, of one chip type or of two; whether it is legal is not asked."""
    pp, vpp = rng.choice((1, 2, 4)), rng.choice((1, 1, 2))
    tp, cp = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 1, 2))
    replicas = max(1, 8 // (tp * cp)) * rng.choice((1, 2))
    layers = [32 // pp] * pp
    if pp > 2 and rng.random() < 0.5:
        layers[0], layers[1] = layers[0] - vpp, layers[1] + vpp
    cut = rng.randrange(pp)
    groups = [("h800", layers[:cut]), ("a800", layers[cut:])]
    kind: RecomputeKind = rng.choice(("none", "none", "selective", "block", "uniform"))
    return strategy_of(
        " ".join(f"{chip}:{','.join(map(str, part))}" for chip, part in groups if part),
        tp=tp,
        cp=cp,
        dp=replicas,
        vpp=vpp,
        mbs=rng.choice((1, 2)),
        ep=rng.choice((1, 2, 8)) if model == "mixtral-8x7b" else 1,
        flags="f" + "s" * (tp > 1 and rng.random() < 0.8) + "z" * (rng.random() < 0.8 and replicas * cp > 1),
        recompute=kind,
        amount=rng.choice((1, 2)) if kind in ("block", "uniform") else 0,
    )


def read_back(folder: Path, problem: Problem, wanted: Strategy, target: str) -> Imported | None:
    """What import makes of the export, with nothing said but the vocabulary; None where the target refuses the plan."""
    try:
        files = launch_of(problem, wanted, target).files
    except CannotExpress:
        return None
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    options = ImportOptions(vocab_size=problem.model.vocab, launcher="any")
    return import_source(str(folder / "train.sh"), options)


@pytest.mark.parametrize(("block", "target"), only(lambda block, _: block == 0, product(range(6), TARGETS)))
def test_random_plans_come_back_on_their_chips(block: int, target: str, tmp_path: Path) -> None:
    """Two chip types too: the list of nodes beside the script has them, in the order of the stages."""
    rng, came_back, mixed = random.Random(1000 * block + TARGETS.index(target)), 0, 0
    for _ in range(14):
        model = rng.choice(MODELS)
        wanted = drawn(rng, model)
        problem = problem_with(model, wanted.devices)
        if structure_violations(problem, wanted):
            continue
        found = read_back(tmp_path, problem, wanted, target)
        if found is not None:
            assert found.strategy == wanted, found.refusals
            assert found.spec["cluster"]["num_gpus"] == wanted.devices
            came_back, mixed = came_back + 1, mixed + (len(wanted.groups) > 1)
    assert came_back >= 2
    assert mixed >= 1


SCRIPT = "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
SCRIPT += "--ffn-hidden-size 11008 --swiglu --normalization RMSNorm --position-embedding-type rope --bf16 "
SCRIPT += "--untie-embeddings-and-output-weights --disable-bias-linear --num-attention-heads 32 --seq-length 4096 "
SCRIPT += "--micro-batch-size 1 --global-batch-size 64 --pipeline-model-parallel-size 4 --vocab-size 32000\n"


def test_the_user_says_which_nodes_have_which_chips(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT, encoding="utf-8")
    found = import_source(str(script), ImportOptions("h800:12,a800:4"))
    assert found.strategy is not None
    assert found.strategy.stage_chips == ("h800", "h800", "h800", "a800")
    assert found.spec["cluster"]["chips"] == {"h800": 12, "a800": 4}


@pytest.mark.parametrize(
    ("chips", "words"),
    [
        ("h800:10,a800:6", "does not fill 4 stages of tp x cp x dp = 4 devices"),
        ("h800:8,a800:4", "does not fill"),
        ("h800:8,a800", "cannot be read"),
        ("h800:,a800:8", "cannot be read"),
        ("h800:8,a9000:8", "unknown chip"),
    ],
)
def test_chips_that_cannot_be(chips: str, words: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        import_source(str(script), ImportOptions(chips))


@pytest.mark.parametrize("text", ["0\tx9\tstages 0\tranks 0-7\n", "yours\n", "\0", ""], ids=repr)
def test_another_list_of_nodes_is_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "nodes.txt").write_text(text, encoding="utf-8")
    assert "cluster.chips" in import_source(str(tmp_path / "train.sh"), ImportOptions()).placeholders
