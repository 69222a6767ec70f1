"""Plans as configurations of DeepSpeed, torchtitan and accelerate: what is told, and what is refused.

The three read their files themselves in tests/real/test_frameworks.py.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.export import accelerate, deepspeed
from cpsolver.doors.export.judge import launch_of
from cpsolver.doors.export.launch import CannotExpress, Launch
from cpsolver.doors.export.shared import hosts, layers_by_part
from tests.support.command import in_tmp as in_tmp
from tests.support.command import run, write
from tests.support.framework_plans import CASES, WITH_HOST, in_precision, launch, plan, refused, yaml_of
from tests.support.problems import problem_of, spec_of, strategy_of
from tests.support.selection import only

EVERY = [(target, name) for target, names in CASES.items() for name in names]


@pytest.mark.parametrize(("target", "name"), only(lambda target, name: EVERY.index((target, name)) % 2 == 0, EVERY))
def test_every_plan_that_the_launcher_runs_is_exported(target: str, name: str) -> None:
    made, problem, strategy = launch(target, name)
    assert made.target == target
    assert made.main in made.files
    assert all(text.endswith("\n") for text in made.files.values())
    assert made.notes
    assert sum(host.slots for host in hosts(problem, strategy)) == strategy.devices


@pytest.mark.parametrize("target", list(CASES))
def test_the_command_writes_the_files(target: str) -> None:
    name = next(iter(CASES[target]))
    made, problem, _ = launch(target, name)
    write("spec.json", json.dumps(problem.spec.model_dump(mode="json")))
    done = run("export", "spec.json", "--to", target, "-o", "out")
    assert done.exit_code == 0, done.output
    assert set(made.files) <= {file.name for file in Path("out").iterdir()}


@pytest.mark.parametrize("target", ["deepspeed", "torchtitan", "accelerate"])
def test_the_command_says_what_to_start(target: str) -> None:
    """A script, not the file that it gives to the framework."""
    write("spec.json", json.dumps(spec_of(batch=32, launcher=target)))
    done = run("export", "spec.json", "--to", target, "-o", "out")
    assert done.output.splitlines()[0].endswith("; start launch.sh")


def test_the_command_says_why_not() -> None:
    write("spec.json", json.dumps(spec_of(batch=32, pin={"pp": 4, "tp": 1})))
    done = run("export", "spec.json", "--to", "accelerate")
    assert done.exit_code == 3
    assert "has no pipeline" in done.output


def test_without_a_plan_it_is_the_best_of_those_that_the_target_runs() -> None:
    spec = spec_of(batch=32, stack="megatron-core")
    write("spec.json", json.dumps(spec))
    write("named.json", json.dumps({**spec, "launcher": "accelerate"}))
    free, named = (run("export", name, "--to", "accelerate", "--json") for name in ("spec.json", "named.json"))
    assert (free.exit_code, named.exit_code) == (0, 0)
    assert json.loads(free.stdout)["strategy"] == json.loads(named.stdout)["strategy"]
    assert "the spec names no launcher" in free.stderr
    assert "the spec names no launcher" not in named.stderr


def test_a_plan_that_breaks_a_rule_is_exported_with_a_note() -> None:
    write("spec.yaml", "{model: llama2-7b, cluster: {num_gpus: 16, chips: a800},\n"
          " training: {global_batch_size: 64, sequence_length: 4096}}")  # fmt: skip
    write("plan.yaml", "{tp: 1, dp: 16, mbs: 4, distributed_optimizer: false, stages: [{chip: a800, layers: [32]}]}")
    done = run("export", "spec.yaml", "--to", "megatron-lm", "--plan", "plan.yaml", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["notes"][0].startswith("this plan breaks a rule of the spec: memory: stage 0")


@pytest.mark.parametrize("target", ["deepspeed", "torchtitan", "accelerate"])
def test_what_a_spec_only_asks_of_its_report_keeps_no_plan_back(target: str) -> None:
    """`training.tokens` is for days and dollars: it is nothing of a run."""
    name = next(iter(CASES[target]))
    problem, s = plan(target, name)
    training = problem.spec.training.model_copy(update={"tokens": 1e11})
    asked = replace(problem, spec=problem.spec.model_copy(update={"training": training}))
    assert launch_of(asked, s, target).files == launch(target, name)[0].files


def test_chips_that_a_framework_is_not_written_for_are_noted() -> None:
    text = "{model: llama2-7b, cluster: {num_gpus: 16, chips: %s}, launcher: %s,\n"
    text += " training: {global_batch_size: 64, sequence_length: 4096}}"
    write("plan.yaml", "{tp: 2, dp: 8, mbs: 1, sequence_parallel: true, stages: [{chip: a800, layers: [32]}]}")
    write("home.yaml", "{tp: 2, dp: 8, mbs: 1, sequence_parallel: true, stages: [{chip: ascend_910b, layers: [32]}]}")
    for chip, launcher, plans, told in (
        ("a800", "mindspeed-llm", "plan.yaml", True),
        ("ascend_910b", "mindspeed-llm", "home.yaml", False),
        ("ascend_910b", "megatron-lm", "home.yaml", True),
        ("a800", "megatron-lm", "plan.yaml", False),
    ):
        write("spec.yaml", text % (chip, launcher))
        done = run("export", "spec.yaml", "--to", launcher, "--plan", plans, "--json")
        notes = json.loads(done.stdout)["notes"]
        assert any(f"{launcher} is written for" in note for note in notes) is told


# DeepSpeed


@pytest.mark.parametrize("name", list(CASES["deepspeed"]))
def test_deepspeeds_batch_and_stage(name: str) -> None:
    made, problem, s = launch("deepspeed", name)
    config = json.loads(made.files["ds_config.json"])
    sequences = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * s.dp
    assert sequences == problem.batch == config.get("train_batch_size", problem.batch)
    assert config["zero_optimization"]["stage"] == s.zero_stage
    assert config["bf16" if problem.spec.training.precision == "bf16" else "fp16"] == {"enabled": True}
    slots = re.findall(r"^\S+ slots=(\d+)", made.files["hostfile"], re.MULTILINE)
    assert sum(map(int, slots)) == s.devices


def test_deepspeeds_kinds() -> None:
    def told(name: str) -> Any:
        return json.loads(launch("deepspeed", name)[0].files["ds_config.json"])

    ulysses = told("ulysses")
    assert (ulysses["sequence_parallel_size"], ulysses["data_parallel_size"]) == (4, 4)
    assert told("offload")["zero_optimization"]["offload_optimizer"]["ratio"] == 0.5
    assert told("zero 1 and a pipeline")["pipeline"] == {"activation_checkpoint_interval": 1}
    assert told("automatic tensor")["tensor_parallel"] == {"autotp_size": 4}
    assert "train_batch_size" not in told("automatic tensor")
    assert "tensor_parallel" not in told("no sharding")  # with a pipeline it is the model's
    assert any("PipelineModule(num_stages=2" in note for note in launch("deepspeed", "no sharding")[0].notes)


def test_deepspeeds_release_is_told_where_older_ones_would_not_start() -> None:
    problem = problem_of()
    for stage, told in (("parameters", True), ("gradients", False)):
        notes = deepspeed.export(problem, strategy_of(tp=2, dp=2, flags="fz", sharded=stage)).notes
        assert any("0.19.4 or later" in note for note in notes) is told
    alone = deepspeed.export(problem, strategy_of(dp=4, flags="fz", sharded="parameters")).notes
    assert not any("AutoTP" in note for note in alone)


def test_deepspeed_overlaps_what_the_stack_hides() -> None:
    problem, s = plan("deepspeed", "zero 3")
    constants = problem.stack.constants
    for hidden in (0.0, 0.6):
        constant = constants.sharding_overlap.model_copy(update={"value": hidden})
        stack = problem.stack.model_copy(
            update={"constants": constants.model_copy(update={"sharding_overlap": constant})}
        )
        made = deepspeed.ds_config(replace(problem, stack=stack), s)
        assert made["zero_optimization"]["overlap_comm"] is (hidden > 0)


def test_deepspeed_is_told_of_weights_on_the_host() -> None:
    problem = problem_of(WITH_HOST, training={"parameter_offload": True, "optimizer_offload": 1.0})
    s = strategy_of(dp=4, flags="fz", sharded="parameters")
    zero = deepspeed.ds_config(problem, s)["zero_optimization"]
    assert (zero["stage"], zero["offload_param"]) == (3, {"device": "cpu", "pin_memory": True})
    assert "offload_param" not in deepspeed.ds_config(problem_of(), s)["zero_optimization"]


def test_what_deepspeed_cannot_say() -> None:
    refused("deepspeed", "does not interleave", groups="x:4,4", vpp=2)
    refused("deepspeed", "needs equal stages", groups="x:1,3")
    refused("deepspeed", "sequence_parallel must be false", tp=2, flags="sf")
    refused("deepspeed", "of kind p2p: a2a", cp=2)
    refused("deepspeed", "cp 2 needs pp 1", groups="x:2,2", cp=2, ulysses=2)
    refused("deepspeed", "no expert parallelism", ep=2)
    refused("deepspeed", "sharded may be optimizer", groups="x:2,2", flags="fz", sharded="parameters")
    refused("deepspeed", "parameters over all replicas", flags="fz", sharded="parameters", sharding_group=2)
    refused("deepspeed", "of kind block: none, uniform", recompute="block", amount=2)
    refused("deepspeed", "no fp8", in_precision("fp8"))
    half = problem_of(WITH_HOST, training={"optimizer_offload": 0.5})
    refused("deepspeed", "offloads a part", half, flags="fz", sharded="optimizer")
    swapped = problem_of(WITH_HOST, training={"swap_optimizer": True})
    refused("deepspeed", "no setting for training.swap_optimizer = true", swapped)
    refused("deepspeed", "micro_batches", micro_batches=(1, 3), mbs=2)


# torchtitan


def namespace(made: Launch) -> dict[str, Any]:
    """What the Python module sets, without torchtitan's own parts."""
    text = made.files["apss_plan.py"].replace("from torchtitan", "# ")
    found: dict[str, Any] = {}
    exec(compile(text, "apss_plan.py", "exec"), found)
    return found


@pytest.mark.parametrize("name", list(CASES["torchtitan"]))
def test_torchtitans_degrees_and_batch(name: str) -> None:
    made, problem, s = launch("torchtitan", name)
    told = namespace(made)
    mesh, training = told["PARALLELISM"], told["TRAINING"]
    replicate, shard = mesh["data_parallel_replicate_degree"], mesh["data_parallel_shard_degree"]
    assert replicate * shard == s.dp
    assert (mesh["tensor_parallel_degree"], mesh["pipeline_parallel_degree"]) == (s.tp, s.pp)
    assert (mesh["context_parallel_degree"], mesh["expert_parallel_degree"]) == (s.cp, s.ep)
    assert shard * s.cp * s.tp % s.ep == 0
    steps, rest = divmod(training["global_batch_size"], training["local_batch_size"] * s.dp)
    assert rest == 0
    inside = training["local_batch_size"] // mesh.get("pipeline_parallel_microbatch_size", s.mbs)
    assert steps * inside == s.microbatches(problem.batch)
    assert steps == 1 or s.pp == 1
    assert training.get("disable_cuda_graphs", False) == (s.pp > 1 or problem.model.moe is not None)
    assert told["RECOMPUTE"] == ("uniform" in s.recompute)


@pytest.mark.parametrize("name", ["uneven", "interleaved", "a layer's place", "mixed"])
def test_torchtitans_parts_are_the_plans_chunks(name: str) -> None:
    made, problem, s = launch("torchtitan", name)
    parts = namespace(made)["PARALLELISM"]["module_fqns_per_model_part"]
    assert len(parts) == s.pp * s.vpp
    together = [module for part in parts for module in part]
    layers = [f"layers.{layer}" for layer in range(problem.model.layers)]
    assert together == ["tok_embeddings", *layers, "norm", "lm_head"]
    for stage, count in enumerate(s.layers):  # torchtitan gives part i to rank i % pp
        assert sum(module.startswith("layers.") for part in parts[stage :: s.pp] for module in part) == count


def test_a_layers_place_is_taken_in_the_first_or_the_last_part() -> None:
    parts = layers_by_part(strategy_of("x:3,4", vpp=2))
    assert [len(part) for part in parts] == [1, 2, 2, 2]
    assert [len(part) for part in layers_by_part(strategy_of("x:4,3", vpp=2))] == [2, 2, 2, 1]
    assert layers_by_part(strategy_of("x:1,3")) == ((0,), (1, 2, 3))


def test_the_older_release_has_a_toml_file() -> None:
    made, problem, _ = launch("torchtitan", "uneven")
    told = tomllib.loads(made.files["torchtitan-0.2.toml"])
    assert told["parallelism"]["module_fqns_per_model_part"][-1][-1] == "output"
    assert told["training"]["seq_len"] == problem.sequence
    assert told["model"] == {"name": "set-me", "flavor": "set-me"}
    assert "torchtitan-0.2.toml" not in launch("torchtitan", "plain tensor")[0].files
    assert any("no TOML file" in note for note in launch("torchtitan", "plain tensor")[0].notes)


def test_resharding_follows_what_is_shared_out() -> None:
    told = {name: namespace(launch("torchtitan", name)[0])["PARALLELISM"] for name in ("parameters", "gradients")}
    assert told["parameters"]["fsdp_reshard_after_forward"] == "always"
    assert told["gradients"]["fsdp_reshard_after_forward"] == "never"
    groups = namespace(launch("torchtitan", "groups")[0])["PARALLELISM"]
    assert (groups["data_parallel_replicate_degree"], groups["data_parallel_shard_degree"]) == (2, 8)


def test_what_torchtitan_cannot_say() -> None:
    refused("torchtitan", "always has flash attention", flags="")
    refused("torchtitan", "of kind p2p: allgather", cp=2, flags="fz", sharded="parameters")
    refused("torchtitan", "of kind a2a: allgather", cp=2, ulysses=2, flags="fz", sharded="parameters")
    refused("torchtitan", "distributed_optimizer must be true", cp=2, cp_gather=True)
    refused("torchtitan", "layer by layer", recompute="uniform", amount=2)
    refused("torchtitan", "fewer than pp 4", problem_of(gpus=16), groups="x:1,1,1,1", dp=4)
    refused("torchtitan", "equal rounds", problem_of(batch=11), groups="x:2,2,2,2", vpp=2, dp=1)
    refused("torchtitan", "no fp16", in_precision("fp16"))
    refused("torchtitan", "sharded may be gradients, parameters", flags="fz", sharded="optimizer")
    refused("torchtitan", "sharded may be optimizer", groups="x:2,2", dp=2, flags="fz", sharded="gradients")
    refused("torchtitan", "keeps experts within", dp=4, ep=4)


# accelerate


@pytest.mark.parametrize("name", list(CASES["accelerate"]))
def test_accelerates_sizes(name: str) -> None:
    made, problem, s = launch("accelerate", name)
    told = yaml_of(made, "accelerate.yaml")
    assert told["num_processes"] == s.devices
    assert told["num_machines"] * problem.node == s.devices
    sizes = told.get("parallelism_config", {})
    product = 1
    for dimension in ("dp_replicate", "dp_shard", "tp", "cp", "sp"):
        product *= sizes.get(f"parallelism_config_{dimension}_size", 1)
    assert product == (s.devices if sizes else 1)
    assert made.environment["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == str(s.microbatches(problem.batch))


def test_accelerates_kinds() -> None:
    def told(name: str) -> Any:
        return yaml_of(launch("accelerate", name)[0], "accelerate.yaml")

    assert told("parameters")["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert told("gradients")["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert told("gradients")["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert told("ring")["parallelism_config"]["parallelism_config_cp_comm_strategy"] == "alltoall"
    assert told("gather")["parallelism_config"]["parallelism_config_cp_comm_strategy"] == "allgather"
    assert told("groups")["parallelism_config"]["parallelism_config_dp_replicate_size"] == 2
    assert told("ulysses")["deepspeed_config"]["deepspeed_multinode_launcher"] == "standard"
    assert "mixed_precision" not in told("ulysses")
    assert told("replicas")["distributed_type"] == told("tensor only")["distributed_type"] == "MULTI_GPU"
    assert told("ulysses")["distributed_type"] == "DEEPSPEED"
    ulysses = json.loads(launch("accelerate", "ulysses")[0].files["ds_config.json"])
    assert (ulysses["sequence_parallel_size"], ulysses["zero_optimization"]["stage"]) == (2, 3)


@pytest.mark.parametrize(("name", "kept"), [("parameters", True), ("ulysses", False), ("replicas", False)])
def test_gradients_between_microbatches_are_told_where_shards_would_lose_them(name: str, kept: bool) -> None:
    """DeepSpeed's stay shards, and replicas hold them whole anyway."""
    problem, s = plan("accelerate", name)
    several, one = (replace(s, mbs=each) for each in (1, problem.batch // s.dp))
    found = [accelerate.export(problem, each).notes for each in (several, one)]
    assert [any("sync_each_batch=True" in note for note in notes) for notes in found] == [kept, False]


def test_what_accelerate_cannot_say() -> None:
    refused("accelerate", "has no pipeline", groups="x:2,2", dp=2)
    refused("accelerate", "no expert parallelism", ep=2)
    refused("accelerate", "sequence_parallel must be false", tp=2, dp=1, flags="sf")
    refused("accelerate", "kind a2a+p2p: p2p, allgather, a2a", cp=4, ulysses=2, dp=1, flags="fz", sharded="parameters")
    refused("accelerate", "distributed_optimizer must be true", cp=2)
    refused("accelerate", "needs sharded replicas", tp=2)
    refused("accelerate", "sharded may be gradients, parameters", flags="fz", sharded="optimizer")
    refused("accelerate", "tp is 2, and must be 1", tp=2, cp=2, ulysses=2, flags="fz", sharded="parameters")
    refused("accelerate", "of kind selective: none, uniform", recompute="selective")
    refused("accelerate", "name no optimizer", problem_of(training={"optimizer": "lion"}))


def test_a_node_has_one_chip_type() -> None:
    problem = problem_of(gpus=8, node=8)
    with pytest.raises(CannotExpress, match="a node of 8 devices would have x and y"):
        hosts(problem, strategy_of("x:2 y:2", dp=4))
