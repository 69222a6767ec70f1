"""Plans as FlagScale's configuration, judged by its own rules.

They are derived again here from its source: flagscale/train/arguments.py and flagscale/train/hetero/parallel_context.py
of da4935ec. tests/real/test_flagscale.py asks that source itself.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from cpsolver.doors.export import flagscale
from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import EXPORTERS, CannotExpress, Launch
from cpsolver.doors.export.shared import hosts
from cpsolver.plans.strategy import Mesh, Strategy
from cpsolver.problem.problem import Problem
from tests.support.framework_plans import CASES, launch, refused, yaml_of
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_meshes

TYPES = {"x": chip_spec(gb=1000), "y": chip_spec(gb=1000), "z": chip_spec(gb=1000)}


def parsed_by_stage(lists: list[list[int]], microbatches: int) -> list[list[int]]:
    """FlagScale's reading of a ..._per_stage_micro_batch: stages, then microbatches and a value, again and again."""
    found = []
    for stages, *pairs in lists:
        values = [value for count, value in zip(pairs[::2], pairs[1::2], strict=True) for _ in range(count)]
        assert len(values) == microbatches
        found += [values] * stages
    return found


@pytest.mark.parametrize("name", list(CASES["flagscale"]))
def test_flagscales_own_rules(name: str) -> None:
    made, problem, s = launch("flagscale", name)
    train = yaml_of(made, "plan_train.yaml")
    system, model = train["system"], train["model"]
    assert system["pipeline_model_parallel_size"] == s.pp
    assert (model["micro_batch_size"], model["global_batch_size"]) == (s.mbs, problem.batch)
    assert problem.batch % (s.mbs * s.dp) == 0
    if "hetero" not in system:
        return
    hetero = system["hetero"]
    numbers, mbs = hetero["hetero_process_meshes"], model["micro_batch_size"]
    assert len(numbers) % 5 == 0
    meshes = [numbers[at : at + 5] for at in range(0, len(numbers), 5)]
    assert sum(tp * cp * dp * pp for tp, cp, _, dp, pp in meshes) == s.devices
    assert sum(mesh[4] for mesh in meshes) == s.pp == len(hetero["hetero_pipeline_layer_split"])
    assert sum(hetero["hetero_pipeline_layer_split"]) == model["num_layers"] == problem.model.layers
    assert all(meshes[0][3] * mbs % mesh[3] == 0 and mesh[1] == 1 for mesh in meshes)
    assert len(hetero["hetero_device_types"]) == len(meshes) == len(set(hetero["hetero_device_types"]))
    assert hetero["hetero_current_device_type"] in hetero["hetero_device_types"]
    assert "num_virtual_stages_per_pipeline_rank" not in system
    assert "num_distributed_optimizer_instances" not in system
    assert hetero["standalone_embedding_stage"] is False
    for tp, cp, ep, dp, pp in meshes:
        etp = system.get("expert_tensor_parallel_size", tp)
        assert tp * cp * dp * pp % (etp * ep * pp) == 0


@pytest.mark.parametrize("name", ["mixed", "mixed, uneven", "experts"])
def test_flagscale_sorts_ranks_into_the_plans_stages(name: str) -> None:
    made, problem, s = launch("flagscale", name)
    types = yaml_of(made, "plan_train.yaml")["system"]["hetero"]["hetero_device_types"]
    lines = re.findall(r"^(\S+) slots=(\d+) type=(\S+)$", made.files["hostfile"], re.MULTILINE)
    ranks = [kind for _, slots, kind in lines for _ in range(int(slots))]
    logical = sorted(range(len(ranks)), key=lambda rank: (types.index(ranks[rank]), rank))
    chips = [ranks[rank] for rank in logical[:: s.stage_devices]]
    assert chips == list(s.stage_chips)
    assert len(lines) == s.devices // problem.node


def test_a_chip_that_comes_twice_has_a_device_type_for_each_time() -> None:
    problem = problem_of(gpus=12, node=4)
    s = strategy_of("x:2 y:1 x:1", dp=4)
    assert flagscale.mesh_types(s) == ("x-0", "y", "x-2")
    assert flagscale.host_types(s, hosts(problem, s)) == ("x-0", "y", "x-2")
    assert flagscale.process_meshes(s) == [1, 1, 1, 4, 1] * 3


def test_flagscale_tells_recomputation_by_stage() -> None:
    made, problem, s = launch("flagscale", "by stage")
    assert len(set(s.recompute_layers)) > 1
    system = yaml_of(made, "plan_train.yaml")["system"]
    count = s.microbatches(problem.batch)
    assert system["recompute_granularity"] == "full"
    read = {
        name: parsed_by_stage(system[f"recompute_{name}_per_stage_micro_batch"], count)
        for name in ("granularity", "method", "num_layers")
    }
    for stage, (kind, amount) in enumerate(zip(s.recompute, s.recompute_layers, strict=True)):
        on = read["granularity"][stage][0]
        assert read["num_layers"][stage] == [amount] * count
        assert on == (kind != "none" and amount > 0)
        assert not on or read["method"][stage] == [{"uniform": 0, "block": 1}[kind]] * count


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("first and last", {"decoder_first_pipeline_num_layers": 1, "decoder_last_pipeline_num_layers": 1}),
        ("interleaved", {"num_virtual_stages_per_pipeline_rank": 2}),
        ("whole layers", {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 2}),
        ("chosen modules", {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "mlp"]}),
        ("one chip", {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}),
    ],
)
def test_flagscale_without_its_heterogeneous_mode(name: str, told: dict[str, Any]) -> None:
    system = yaml_of(launch("flagscale", name)[0], "plan_train.yaml")["system"]
    assert {key: system[key] for key in told} == told
    assert "hetero" not in system


def test_any_layers_on_one_chip_are_one_mesh() -> None:
    made, _, s = launch("flagscale", "any layers")
    hetero = yaml_of(made, "plan_train.yaml")["system"]["hetero"]
    assert hetero["hetero_pipeline_layer_split"] == list(s.layers) == [1, 3, 2, 2]
    assert hetero["hetero_process_meshes"] == [s.tp, 1, 1, s.dp, 4]


def test_the_experiment_finds_its_train_section_beside_it() -> None:
    made, _, s = launch("flagscale", "mixed")
    experiment = yaml_of(made, "plan.yaml")
    assert experiment["defaults"] == ["plan_train@train", "_self_"]
    runner = experiment["experiment"]["runner"]
    assert runner["nnodes"] * runner["nproc_per_node"] == s.devices
    assert runner["rdzv_backend"] == "static"


def test_what_flagscale_cannot_say() -> None:
    refused("flagscale", "between the first and the last with cp 2", groups="x:1,2,1,2", cp=2, dp=2)
    refused("flagscale", "does not interleave where chip types mix", groups="x:2 y:2", vpp=2, dp=2)
    refused("flagscale", "shards over all replicas where", groups="x:2 y:2", dp=4, flags="fz", sharding_group=2)
    one, two = strategy_of("x:2", recompute="selective").groups + strategy_of("y:2").groups
    with pytest.raises(CannotExpress, match="only none, block, uniform may differ"):
        launch_of(problem_of(gpus=8), replace(strategy_of("x:2 y:2"), groups=(one, two)), "flagscale")
    refused("flagscale", "triangle_attention", problem_of(training={"triangle_attention": True}), groups="x:4", dp=4)
    refused("flagscale", "optimizer is cadam", problem_of(training={"optimizer": "cadam"}), groups="x:4", dp=4)


# Degrees by chip type


def exported(s: Strategy, **fields: Any) -> tuple[Launch, Problem]:
    """The plan for a problem of its devices on x, y and z, in nodes of 2, and the export of it."""
    chips = {name: TYPES[name] for name in dict.fromkeys(s.stage_chips)}
    problem = problem_of(chips, **{"node": 2, "gpus": s.devices, "batch": 16, "launcher": "flagscale", **fields})
    return launch_of(problem, s, "flagscale"), problem


THREE = with_meshes(
    strategy_of("x:1 y:1,1 z:1", tp=2, dp=2, mbs=2, flags="fsz"), y=Mesh(tp=4, cp=1, dp=1), z=Mesh(tp=1, cp=1, dp=4)
)


def test_every_mesh_has_its_own_degrees() -> None:
    made, _ = exported(THREE)
    train = yaml_of(made, "plan_train.yaml")
    system, model = train["system"], train["model"]
    assert system["hetero"]["hetero_process_meshes"] == [2, 1, 1, 2, 1, 4, 1, 1, 1, 2, 1, 1, 1, 4, 1]
    assert system["hetero"]["hetero_device_types"] == ["x", "y", "z"]
    assert system["hetero"]["hetero_pipeline_layer_split"] == [1, 1, 1, 1]
    assert (model["micro_batch_size"], system["pipeline_model_parallel_size"]) == (2, 4)
    assert system["sequence_parallel"] is True
    assert system["use_distributed_optimizer"] is True
    assert "use_partial_reduce_for_shared_embedding" not in system["hetero"]


def test_hosts_follow_the_widths_of_the_stages() -> None:
    made, _ = exported(THREE)
    kinds = re.findall(r"^host\d+ slots=2 type=(\S+)$", made.files["hostfile"], re.MULTILINE)
    assert kinds == ["x"] * 2 + ["y"] * 4 + ["z"] * 2
    assert yaml_of(made, "plan.yaml")["experiment"]["runner"]["nnodes"] == 8


def test_a_node_of_two_types_is_refused() -> None:
    narrow = with_meshes(strategy_of("x:2 y:2", tp=1, dp=3, mbs=2), y=Mesh(tp=1, cp=1, dp=1))
    with pytest.raises(CannotExpress, match="a node of 2 devices would have x and y"):
        exported(narrow, batch=12)


def test_sequence_parallelism_and_sharding_are_told_where_any_mesh_has_them() -> None:
    first_alone = with_meshes(strategy_of("x:2 y:2", tp=1, dp=1, mbs=2, flags="fsz"), y=Mesh(tp=2, cp=1, dp=2))
    assert first_alone.canonical().meshes[0][0] == Mesh(1, 1, 1)
    made, problem = exported(first_alone, node=1)
    system = yaml_of(made, "plan_train.yaml")["system"]
    assert system["sequence_parallel"] is True
    assert system["use_distributed_optimizer"] is True
    assert system["overlap_grad_reduce"] is True
    assert problem.stack.gradient_overlap > 0


def test_tensor_overlap_is_off_on_the_types_without_tensor_parallelism() -> None:
    """FlagScale turns sequence parallelism off there, and Megatron-LM then asserts that nothing overlaps."""
    made, problem = exported(THREE)
    assert problem.stack.tensor_overlap > 0
    assert yaml_of(made, "plan_train.yaml")["system"]["tp_comm_overlap"] is True
    assert yaml_of(made, "plan.yaml")["device_type_specific"] == {"z": {"tp_comm_overlap": "false"}}
    wide = with_meshes(strategy_of("x:2 y:2", tp=2, dp=2, flags="fsz"), y=Mesh(tp=4, cp=1, dp=1))
    assert "device_type_specific" not in yaml_of(exported(wide)[0], "plan.yaml")


def test_experts_are_cut_by_mesh() -> None:
    moe = model_spec(moe={"experts": 8, "top_k": 2, "expert_ffn": 512})
    s = with_meshes(strategy_of("x:2 y:2", tp=2, dp=4, ep=4, etp=2, flags="fsz"), y=Mesh(tp=2, cp=1, dp=2, ep=4, etp=1))
    system = yaml_of(exported(s, model=moe)[0], "plan_train.yaml")["system"]
    assert system["hetero"]["hetero_process_meshes"] == [2, 1, 4, 4, 1, 2, 1, 4, 2, 1]
    assert system["hetero"]["expert_tensor_parallel_size_per_process_mesh"] == [2, 1]
    only_cut = with_meshes(strategy_of("x:2 y:2", tp=2, dp=2, flags="fsz"), y=Mesh(tp=2, cp=1, dp=1, etp=2))
    system = yaml_of(exported(only_cut, model=moe)[0], "plan_train.yaml")["system"]
    assert system["hetero"]["expert_tensor_parallel_size_per_process_mesh"] == [1, 2]
    assert system["moe_token_dispatcher_type"] == "alltoall"


@pytest.mark.parametrize("model", [{"tied_embeddings": True}, {"mtp_layers": 1}])
def test_a_shared_embedding_is_reduced_in_parts_where_replicas_differ(model: dict[str, Any]) -> None:
    s = with_meshes(strategy_of("x:2 y:2", tp=2, dp=6, flags="fsz"), y=Mesh(tp=2, cp=1, dp=2))
    train = yaml_of(exported(s, model=model_spec(**model), batch=12)[0], "plan_train.yaml")
    assert train["system"]["hetero"]["use_partial_reduce_for_shared_embedding"] is True
    assert train["model"]["make_vocab_size_divisible_by"] == 384  # 128 and dp 6
    whole = replace(s, distributed_optimizer=False)
    train = yaml_of(exported(whole, model=model_spec(**model), batch=12)[0], "plan_train.yaml")
    assert "use_partial_reduce_for_shared_embedding" not in train["system"]["hetero"]
    assert train["model"]["make_vocab_size_divisible_by"] == 128


@pytest.mark.parametrize(
    ("s", "told"),
    [
        (strategy_of("x:2 y:2", tp=2, dp=2), False),
        (strategy_of("x:1,1 y:2", tp=2, dp=2), True),
        (strategy_of("x:1,1 y:2", tp=2, dp=1, flags="f"), False),
        (strategy_of("x:2 y:1,1", tp=2, dp=2), False),
        (strategy_of("x:1,1,2", tp=2, dp=2), False),
        (THREE, False),
        (with_meshes(strategy_of("x:1,1 y:2", tp=1, dp=4), y=Mesh(tp=1, cp=1, dp=2)), True),
    ],
)
def test_a_note_says_where_flagscale_miscounts_ranks(s: Strategy, told: bool) -> None:
    assert any("issue 658" in note for note in exported(s)[0].notes) is told


@pytest.mark.parametrize("target", [target for target in EXPORTERS if target != "flagscale"])
def test_others_refuse_unequal_degrees(target: str) -> None:
    s = with_meshes(strategy_of("x:2 y:2", tp=2, dp=2, mbs=2, flags="fsz"), y=Mesh(tp=2, cp=1, dp=4))
    with pytest.raises(CannotExpress) as caught:
        launch_of(problem_of({"x": TYPES["x"], "y": TYPES["y"]}, gpus=12, node=4), s, target)
    said = [reason for reason in caught.value.reasons if "degrees" in reason]
    assert said == [f"{target} has the same degrees on all stages, not tp 2 dp 2 on x, tp 2 dp 4 on y"]
