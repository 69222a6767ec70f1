"""Exporters of the Megatron family: what each decision becomes in each dialect, and what each cannot say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpsolver.doors.export.judge import launch_of, reasons_against
from cpsolver.doors.export.launch import CannotExpress, Launch, exporter
from cpsolver.doors.export.parallel_args import layout_string, recomputes_by_stage, stage_chunks
from cpsolver.doors.export.script import grouped
from cpsolver.plans.strategy import StageGroup, Strategy
from cpsolver.problem.problem import Problem
from models_zoo import load_architecture
from tests.support.problems import chip_spec, model_spec, problem_of, strategy_of, with_host, with_stack

MEGATRON = ("megatron-lm", "megatron-core-0.13", "megatron-core-0.12")
FAMILY = (*MEGATRON, "mindspeed-llm", "loongforge")


def options(launch: Launch) -> dict[str, tuple[str, ...]]:
    return {flag[0]: flag[1:] for flag in grouped(launch.arguments)}


def exported(target: str, strategy: Strategy, problem: Problem | None = None, **given: Any) -> dict[str, Any]:
    chip = chip_spec(host_link={"pcie_generation": 5, "bandwidth_gb_s": 64})
    chip |= {"block_formats": ["mx", "nvfp4"]}
    chip["peak_tflops"] |= {"fp8": 200, "fp4": 400}
    problem = problem or problem_of({"x": chip}, gpus=strategy.devices, node=1, **given)
    return options(launch_of(problem, strategy, target))


def refusal(target: str, strategy: Strategy, **given: Any) -> str:
    with pytest.raises(CannotExpress) as caught:
        exported(target, strategy, **given)
    return str(caught.value)


def model_of(name: str) -> Problem:
    return replace(problem_of(), model=load_architecture(name))


@pytest.mark.parametrize("target", FAMILY)
def test_degrees_and_batch(target: str) -> None:
    told = exported(target, strategy_of("x:2,2", tp=2, dp=2, mbs=2, flags="sfz"), batch=16)
    assert told["--tensor-model-parallel-size"] == ("2",)
    assert told["--pipeline-model-parallel-size"] == ("2",)
    assert told["--micro-batch-size"] == ("2",)
    assert told["--global-batch-size"] == ("16",)
    assert "--sequence-parallel" in told
    assert "--use-distributed-optimizer" in told
    assert "--expert-model-parallel-size" not in told
    assert "--recompute-granularity" not in told


@pytest.mark.parametrize("target", [*FAMILY, "megatron-bridge", "flagscale"])
def test_what_the_plan_s_memory_counts_on_is_in_the_environment(target: str) -> None:
    """Segments that grow in place: in the script, by the chips' own variable, where the spec or the stack has them."""
    plan = strategy_of("x:2,2", tp=2, dp=1, flags="sfz")
    for said, value in ((True, "expandable_segments:True"), (None, None)):
        for vendor, name in (("nvidia", "PYTORCH_CUDA_ALLOC_CONF"), ("huawei", "PYTORCH_NPU_ALLOC_CONF")):
            chip = chip_spec(vendor=vendor)
            given = {"gpus": plan.devices, "node": 1, "stack": "megatron-core"}
            problem = problem_of({"x": chip}, training={"expandable_segments": said}, **given)
            launch = launch_of(problem, plan, target)
            assert launch.environment.get(name) == value
            assert any(name in text for text in launch.files.values()) is bool(said)


@pytest.mark.parametrize("target", ["torchtitan", "accelerate", "deepspeed"])
def test_where_no_file_says_it_a_note_does(target: str) -> None:
    plan = strategy_of("x:4", dp=2, flags="fz", sharded="parameters")
    for said, stack in ((True, "megatron-core"), (None, "megatron-bridge"), (None, "megatron-core")):
        problem = problem_of(gpus=2, node=1, stack=stack, training={"expandable_segments": said})
        told = [note for note in launch_of(problem, plan, target).notes if "expandable_segments:True" in note]
        assert len(told) == (said is True or stack == "megatron-bridge")
        assert all("PYTORCH_CUDA_ALLOC_CONF" in note for note in told)


def test_frameworks_without_pytorch_have_no_such_allocator() -> None:
    for target in ("paddleformers", "mindformers"):
        told = refusal(target, strategy_of("x:2,2", tp=2, dp=1, flags="sfz"), training={"expandable_segments": True})
        assert "expandable_segments" in told


def test_layers_of_every_chunk() -> None:
    assert stage_chunks(strategy_of("x:6,8", vpp=2)) == ((3, 3), (4, 4))
    assert stage_chunks(strategy_of("x:7,8,8,7", vpp=4)) == ((1, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 1))


@pytest.mark.parametrize(
    ("strategy", "mtp", "text"),
    [
        (strategy_of("x:7,9,9,7"), 0, "Et*7|(t*9|)*2t*7L"),
        (strategy_of("x:4,3"), 0, "Et*4|t*3L"),
        (strategy_of("x:4,1"), 2, "Et*4|tmmL"),
        (strategy_of("x:4,6,4", vpp=2), 0, "Et*2|t*3|(t*2|)*2t*3|t*2L"),
        (strategy_of("x:1,2,1", vpp=2), 0, "E|(t|)*4L"),
        # Megatron-Bridge's own: recipes/deepseek/deepseek_v3.py, kimi/kimi_k2.py; the first and second are one text.
        (strategy_of("x:16,16,16,13", vpp=4), 1, "Et*4|(t*4|)*14tmL"),
        (strategy_of("x:32,29", vpp=8), 1, "Et*4|(t*4|)*14tmL"),
        (strategy_of("x:16,16,16,13", vpp=4), 0, "Et*4|(t*4|)*14tL"),
        (strategy_of("x:7," + "8," * 6 + "6", vpp=4), 1, "Et|(t*2|)*30mL"),
    ],
)
def test_layout_strings(strategy: Strategy, mtp: int, text: str) -> None:
    assert layout_string(strategy, mtp) == text


@pytest.mark.parametrize(
    ("target", "groups", "vpp", "flags"),
    [
        ("megatron-lm", "x:8,8", 2, {"--num-virtual-stages-per-pipeline-rank": ("2",)}),
        ("mindspeed-llm", "x:8,8", 2, {"--num-layers-per-virtual-pipeline-stage": ("4",)}),
        (
            "megatron-core-0.12",
            "x:3,5,5,4",
            1,
            {"--decoder-first-pipeline-num-layers": ("3",), "--decoder-last-pipeline-num-layers": ("4",)},
        ),
        ("megatron-lm", "x:3,5", 1, {"--decoder-first-pipeline-num-layers": ("3",)}),
        (
            "megatron-core-0.13",
            "x:7,8,8,7",
            4,
            {
                "--account-for-embedding-in-pipeline-split": (),
                "--account-for-loss-in-pipeline-split": (),
                "--num-virtual-stages-per-pipeline-rank": ("4",),
            },
        ),
        ("megatron-lm", "x:3,5,6,4", 1, {"--pipeline-model-parallel-layout": ("Et*3|t*5|t*6|t*4L",)}),
        ("mindspeed-llm", "x:3,5,6,4", 1, {"--num-layer-list": ("3,5,6,4",)}),
        ("mindspeed-llm", "x:2,4,6,4", 2, {"--pipeline-model-parallel-layout": ("Et|t*2|t*3|t*2|t|t*2|t*3|t*2L",)}),
        ("loongforge", "x:3,5,6,4", 1, {"--custom-pipeline-layers": ("3,5,6,4",)}),
        ("loongforge", "x:2,4,6,4", 2, {"--pipeline-model-parallel-layout": ("Et|t*2|t*3|t*2|t|t*2|t*3|t*2L",)}),
    ],
)
def test_layers_by_stage(target: str, groups: str, vpp: int, flags: dict[str, tuple[str, ...]]) -> None:
    told = exported(target, strategy_of(groups, dp=1, vpp=vpp))
    marks = ("virtual", "account", "decoder", "layout", "layer-list", "custom")
    assert {name: values for name, values in told.items() if any(mark in name for mark in marks)} == flags


def test_what_no_layout_can_say() -> None:
    assert "between the first and the last" in refusal("megatron-core-0.12", strategy_of("x:3,5,6,4", dp=1))
    mtp = strategy_of("x:15,16,17,13", tp=1, dp=8)
    problem = model_of("deepseek-v3-671b")
    with pytest.raises(CannotExpress, match="multi-token prediction"):
        launch_of(problem, mtp, "megatron-core-0.13")
    assert "mL" in options(exporter("megatron-lm")(problem, mtp))["--pipeline-model-parallel-layout"][0]


@pytest.mark.parametrize(
    ("more", "megatron", "mindspeed"),
    [
        ({}, {"--cp-comm-type": ("p2p",)}, {"--context-parallel-algo": ("megatron_cp_algo",)}),
        (
            {"cp_gather": True},
            {"--cp-comm-type": ("allgather",)},
            {"--context-parallel-algo": ("kvallgather_cp_algo",)},
        ),
        ({"ulysses": 4}, {"--cp-comm-type": ("a2a",)}, {"--context-parallel-algo": ("ulysses_cp_algo",)}),
        (
            {"ulysses": 2},
            {"--cp-comm-type": ("a2a+p2p",), "--hierarchical-context-parallel-sizes": ("2", "2")},
            {"--context-parallel-algo": ("hybrid_cp_algo",), "--ulysses-degree-in-cp": ("2",)},
        ),
        (  # heads are exchanged by neighbours, the innermost size; 8 / 2 = 4 such groups form the ring
            {"cp": 8, "ulysses": 2},
            {"--cp-comm-type": ("a2a+p2p",), "--hierarchical-context-parallel-sizes": ("2", "4")},
            {"--context-parallel-algo": ("hybrid_cp_algo",), "--ulysses-degree-in-cp": ("2",)},
        ),
    ],
)
def test_context_parallelism(more: dict[str, Any], megatron: dict[str, Any], mindspeed: dict[str, Any]) -> None:
    strategy = strategy_of(**{"dp": 1, "cp": 4, **more})
    for target, flags in (("megatron-lm", megatron), ("mindspeed-llm", mindspeed)):
        told = exported(target, strategy)
        marks = ("--cp-", "hierarchical", "-algo", "ulysses")
        assert {name: values for name, values in told.items() if any(mark in name for mark in marks)} == flags


def test_recomputation() -> None:
    told = exported("megatron-lm", strategy_of("x:2,2", dp=1, recompute="block", amount=1))
    assert (told["--recompute-granularity"], told["--recompute-method"]) == (("full",), ("block",))
    assert told["--recompute-num-layers"] == ("1",)
    told = exported("megatron-lm", strategy_of("x:2,2", dp=1, recompute="selective"))
    assert (told["--recompute-granularity"], told["--recompute-modules"]) == (("selective",), ("core_attn",))
    assert "--recompute-num-layers" not in told


def by_stage(*amounts: int, vpp: int = 1) -> Strategy:
    group = StageGroup("x", (2,) * len(amounts), "block", amounts)
    return replace(strategy_of("x:2,2", dp=1, vpp=vpp), pp=len(amounts), groups=(group,))


def test_recomputation_by_stage() -> None:
    assert "cannot recompute differently by stage" in refusal("megatron-lm", by_stage(2, 1))
    told = exported("loongforge", by_stage(2, 1))
    assert told["--custom-pipeline-recompute-layers"] == ("2,1",)
    assert (told["--recompute-granularity"], told["--recompute-method"]) == (("full",), ("block",))
    assert "by stage with vpp 2" in refusal("loongforge", by_stage(1, 0, vpp=2))
    assert "--custom-pipeline-recompute-layers" not in exported("loongforge", by_stage(1, 1))


@pytest.mark.parametrize(
    ("target", "flag", "checkpoint"),
    [
        ("megatron-lm", "--use-megatron-fsdp", ("fsdp_dtensor",)),
        ("megatron-core-0.12", "--use-custom-fsdp", None),
        ("mindspeed-llm", "--use-custom-fsdp", None),
    ],
)
def test_sharded_parameters(target: str, flag: str, checkpoint: tuple[str, ...] | None) -> None:
    launch = exporter(target)(problem_of(), strategy_of(sharded="parameters"))
    told = options(launch)
    assert flag in told
    assert told["--data-parallel-sharding-strategy"] == ("optim_grads_params",)
    assert told.get("--ckpt-format") == checkpoint
    assert launch.environment["CUDA_DEVICE_MAX_CONNECTIONS"] != "1"


def test_one_hardware_queue_without_fsdp() -> None:
    launch = exporter("megatron-lm")(problem_of(), strategy_of(tp=2, dp=2))
    assert launch.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_sharding_groups_are_instances() -> None:
    assert exported("megatron-lm", strategy_of(dp=8, sharding_group=2))["--num-distributed-optimizer-instances"] == (
        "4",
    )
    assert "--num-distributed-optimizer-instances" not in exported("megatron-lm", strategy_of(dp=8))


def test_overlaps_are_those_of_the_stack() -> None:
    off = with_stack(problem_of(gpus=4), gradient_overlap=0.0, parameter_overlap=0.0, tensor_overlap=0.0)
    on = with_stack(off, gradient_overlap=0.9, parameter_overlap=0.9, tensor_overlap=0.5)
    strategy = strategy_of(tp=2, dp=2, flags="sfz")
    names = {"--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap"}
    assert not names & set(exported("megatron-lm", strategy, off))
    assert names <= set(exported("megatron-lm", strategy, on))
    plain = set(exported("megatron-lm", replace(strategy, distributed_optimizer=False), on))
    assert names & plain == {"--overlap-grad-reduce", "--tp-comm-overlap"}
    assert "--use-ascend-mc2" in exported("mindspeed-llm", strategy, on)


def test_breadth_first_groups_all_microbatches() -> None:
    told = exported("megatron-lm", strategy_of("x:2,2", dp=2, vpp=2, schedule="breadth_first"), batch=16)
    assert told["--microbatch-group-size-per-virtual-pipeline-stage"] == ("8",)


@pytest.mark.parametrize(
    ("training", "flags", "without"),
    [
        ({"optimizer": "precision_aware"}, {"--use-precision-aware-optimizer": ()}, ()),
        ({"optimizer": "precision_aware_bf16"}, {"--exp-avg-dtype": ("bf16",)}, ("megatron-core-0.12",)),
        ({"optimizer_offload": 0.5}, {"--optimizer-cpu-offload": (), "--optimizer-offload-fraction": ("0.5",)}, ()),
        (
            {"optimizer": "muon", "muon_tp_mode": "distributed"},
            {"--optimizer": ("muon",), "--muon-tp-mode": ("distributed",), "--use-distributed-optimizer": ()},
            MEGATRON[1:],
        ),
        ({"optimizer": "soap"}, {"--optimizer": ("soap",), "--use-distributed-optimizer": ()}, MEGATRON[1:]),
        ({"activation_offload": "core_attn"}, {"--offload-modules": ("core_attn",)}, MEGATRON[1:]),
        ({"offload_layers": 3}, {"--cpu-offloading-num-layers": ("3",)}, MEGATRON[1:]),
        ({"reuse_fp32_parameters": True}, {"--reuse-fp32-param": ()}, MEGATRON),
        ({"swap_optimizer": True}, {"--swap-optimizer": ()}, MEGATRON),
        ({"recompute_activation_function": True}, {"--recompute-activation-function": ()}, MEGATRON),
        ({"optimizer": "o2_adamw"}, {"--o2-optimizer": ()}, MEGATRON),
        ({"optimizer": "quantized_states"}, {"--quant-states": ("fp8",)}, MEGATRON),
        ({"activation_offload": "attention"}, {"--swap-attention": ()}, MEGATRON),
        (
            {"precision": "fp8", "fp8_recipe": "current", "fp8_parameter_gather": True},
            {"--fp8-format": ("hybrid",), "--fp8-recipe": ("tensorwise",), "--fp8-param-gather": ()},
            (),
        ),
        ({"precision": "fp8", "fp8_recipe": "delayed"}, {"--fp8-format": ("hybrid",)}, ()),
        (
            {"precision": "fp8", "fp8_recipe": "blockwise"},
            {"--fp8-format": ("e4m3",), "--fp8-recipe": ("blockwise",)},
            MEGATRON[2:],
        ),
        ({"precision": "fp8"}, {"--fp8-format": ("e4m3",), "--fp8-recipe": ("mxfp8",)}, ()),  # as the stack does there
        (
            {"precision": "fp8", "fp8_recipe": "mx", "fp8_parameter_gather": True},
            {"--fp8-param-gather": (), "--reuse-grad-buf-for-mxfp8-param-ag": ()},
            MEGATRON[1:],
        ),
        ({"precision": "nvfp4"}, {"--fp4-format": ("e2m1",), "--fp4-recipe": ("nvfp4",)}, ()),
        ({"precision": "nvfp4", "fp8_parameter_gather": True}, {"--fp4-param-gather": ()}, ()),
        (
            {"cuda_graph": "full"},
            {"--cuda-graph-impl": ("local",), "--cuda-graph-scope": ("full_iteration",), "--te-rng-tracker": ()},
            MEGATRON[1:],
        ),
        ({"cuda_graph": "te"}, {"--cuda-graph-scope": ("attn", "mlp")}, MEGATRON[1:]),
        ({"precision": "fp8", "fp8_attention": True}, {}, MEGATRON),  # no option says it
        ({"triangle_attention": True}, {}, (*MEGATRON, "mindspeed-llm")),
    ],
)
def test_techniques(training: dict[str, Any], flags: dict[str, Any], without: tuple[str, ...]) -> None:
    mine = ("--reuse-fp32-param", "--swap-optimizer", "--quant-states", "--swap-attention")
    strategy = strategy_of(tp=2, dp=2, flags="sz" if "triangle_attention" in training else "sfz")
    for target in MEGATRON:
        if target in without:
            assert "training." in refusal(target, strategy, training=training)
        else:
            assert flags.items() <= exported(target, strategy, training=training).items()
    if set(flags) & set(mine):
        assert flags.items() <= exported("mindspeed-llm", strategy, training=training).items()


def test_mindspeed_recomputes_blocks_of_some_layers_of_each_stage() -> None:
    training = {"activation_offload": "attention", "recompute_mlp_layers": 2}
    plan = strategy_of("x:2,2", dp=2, flags="fz")
    given: dict[str, Any] = {"training": training, "layer_split": "even"}
    told = exported("mindspeed-llm", plan, **given)
    assert told["--recompute-num-layers"] == ("1",)
    assert {"--swap-attention", "--enable-recompute-layers-per-pp-rank"} <= told.keys()
    assert not {"--recompute-granularity", "--recompute-method"} & told.keys()
    assert "training.recompute_mlp_layers" in refusal("megatron-lm", plan, **given)


def test_experts_products_compute_the_activation_where_the_prediction_counts_on_it() -> None:
    chip = chip_spec() | {"block_formats": ["mx"]}
    chip["peak_tflops"] |= {"fp8": 200}
    given = {"precision": "fp8", "fp8_recipe": "mx", "cuda_graph": "full"}
    model = model_spec(moe={"experts": 4, "top_k": 1, "expert_ffn": 512})
    options = {"--use-transformer-engine-op-fuser": (), "--moe-mlp-glu-interleave-size": ("32",)}
    for training, on in ((given, 1), (given | {"cuda_graph": "te"}, 1), (given, 0)):
        problem = with_stack(problem_of({"x": chip}, model=model, gpus=4, training=training), fused_experts=on)
        found = exported("megatron-lm", strategy_of(dp=4, ep=4), problem)
        told = options if problem.fused_experts else dict.fromkeys(options)
        assert {name: found.get(name) for name in options} == told
        assert problem.fused_experts == (training is given and on == 1)


def test_muon_shares_out_no_biases_of_experts() -> None:
    """core/optimizer/__init__.py: Adam has no distributed optimizer for what is left of experts' weights."""
    given: dict[str, Any] = {"training": {"optimizer": "muon"}}
    model = {"moe": {"experts": 4, "top_k": 1, "expert_ffn": 512}, "bias_mlp": True}
    given["model"] = model_spec(**model)
    assert "no place for the biases" in refusal("megatron-lm", strategy_of(dp=4), **given)
    assert "--optimizer" in exported("megatron-lm", strategy_of(dp=4, flags="f"), **given)
    plain = {"moe": model["moe"]}
    assert exported("megatron-lm", strategy_of(dp=4), **{**given, "model": model_spec(**plain)})


def test_schedules_that_no_megatron_has() -> None:
    problem = problem_of()
    strategy = strategy_of("x:2,2", dp=2, schedule="zb1p")
    assert any("zb1p" in reason for reason in reasons_against(problem, strategy, "megatron-lm"))
    assert "zb1p" in refusal("megatron-lm", strategy)
    assert "microbatches of one size" in refusal(
        "megatron-lm", replace(strategy, schedule="1f1b", micro_batches=(1, 3))
    )


@pytest.mark.parametrize(
    ("plan", "written"),
    [
        (strategy_of("x:2,2", tp=2, flags="fz", recompute="block", amount=1), True),
        (strategy_of("x:2,2", tp=2, flags="fz", recompute="uniform", amount=1), True),
        (strategy_of("x:2,2", tp=2, flags="sfz", recompute="block", amount=1), False),
        (strategy_of("x:2,2", dp=2, flags="fz", recompute="block", amount=1), False),
        (strategy_of("x:2,2", tp=2, flags="fz"), False),
    ],
)
def test_checkpoints_are_shared_out_where_megatron_takes_the_flag(plan: Strategy, written: bool) -> None:
    """It asserts tensor parallelism and whole layers recomputed, and refuses sequence parallelism beside."""
    problem = problem_of(model=model_spec(layers=4), training={"distribute_saved_activations": True})
    assert ("--distribute-saved-activations" in exporter("megatron-lm")(problem, plan).arguments) == written
    assert ("--distribute-saved-activations" in exporter("mindspeed-llm")(problem, plan).arguments) == written
    fields = exporter("megatron-bridge")(problem, plan).files["plan.py"]
    assert f"'model.distribute_saved_activations': {written}" in fields


@pytest.mark.parametrize("flags", ["fz", "sfz"])
@pytest.mark.parametrize(
    ("target", "file", "told"),
    [
        ("deepspeed", "ds_config.json", '"partition_activations": {value}'),
        ("flagscale", "plan_train.yaml", "distribute_saved_activations: {value}"),
        ("loongforge", "train.sh", "--distribute-saved-activations"),
    ],
)
def test_others_of_the_family_share_checkpoints_out_too(target: str, file: str, told: str, flags: str) -> None:
    problem = problem_of(model=model_spec(layers=4), training={"distribute_saved_activations": True})
    plan = strategy_of("x:4", tp=2, flags=flags, recompute="uniform", amount=1)
    text = exporter(target)(problem, plan).files[file]
    assert (told.format(value="true") in text) == (flags == "fz")


@pytest.mark.parametrize(
    ("target", "file", "told"),
    [
        ("deepspeed", "ds_config.json", '"cpu_checkpointing": true'),
        ("megatron-deepspeed", "train.sh", "--checkpoint-in-cpu"),
    ],
)
def test_checkpoints_wait_on_the_host_where_deepspeed_trains(target: str, file: str, told: str) -> None:
    plain = problem_of(model=model_spec(layers=4, tied_embeddings=True))
    plan = strategy_of("x:4", tp=2, flags="fz", recompute="uniform", amount=1)
    for problem, written in ((plain, False), (with_host(plain, cpu_checkpointing=True), True)):
        assert (told in exporter(target)(problem, plan).files[file]) == written
    with pytest.raises(CannotExpress, match="cpu_checkpointing is true: megatron-lm has no flag"):
        exporter("megatron-lm")(with_host(plain, cpu_checkpointing=True), plan)


@pytest.mark.parametrize(("flags", "told"), [("f", 1), ("fz", 0)])
def test_states_that_deepspeed_shares_out_by_itself_are_told(flags: str, told: int) -> None:
    problem = problem_of(model=model_spec(layers=4, tied_embeddings=True))
    made = exporter("megatron-deepspeed")(problem, strategy_of("x:4", tp=2, dp=2, flags=flags))
    assert sum("shares its states out" in note for note in made.notes) == told


def test_flagscale_shares_checkpoints_out_where_stages_recompute_differently() -> None:
    problem = problem_of(model=model_spec(layers=4), training={"distribute_saved_activations": True})
    plan = strategy_of("x:2,2", tp=2, flags="fz", recompute="block", amount=1)
    plan = replace(plan, groups=(replace(plan.groups[0], recompute_layers=(2, 1)),))
    assert recomputes_by_stage(plan)
    assert "distribute_saved_activations: true" in exporter("flagscale")(problem, plan).files["plan_train.yaml"]
