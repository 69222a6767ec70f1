"""The model in the options of the Megatron family and in Megatron-Bridge's fields."""

from __future__ import annotations

from ast import literal_eval
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cpsolver.doors.export.bridge import fields
from cpsolver.doors.export.dialect import MEGATRON_LM
from cpsolver.doors.export.judge import reasons_against
from cpsolver.doors.export.launch import CannotExpress, exporter
from cpsolver.doors.export.model_args import expert_layers, model_flags, padded_vocabulary
from cpsolver.problem.problem import Problem
from cpsolver.profiles.framework import launcher_names, load_launcher
from models_zoo import architecture_names, load_architecture
from tests.doors.export.test_export_megatron import model_of, options
from tests.support.problems import chip_spec, problem_of, strategy_of, with_host, with_stack


def told(model: str, target: str = "megatron-lm", **more: Any) -> dict[str, tuple[str, ...]]:
    layers = load_architecture(model).layers
    return options(exporter(target)(model_of(model), strategy_of(f"x:{layers}", **more)))


def test_a_dense_model_of_llamas_shape() -> None:
    found = told("llama2-70b", tp=8)
    sizes = ("--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads", "--num-query-groups")
    assert [found[name] for name in sizes] == [("80",), ("8192",), ("28672",), ("64",), ("8",)]
    assert {"--swiglu", "--untie-embeddings-and-output-weights", "--disable-bias-linear"} <= set(found)
    assert found["--position-embedding-type"] == ("rope",)
    assert found["--normalization"] == ("RMSNorm",)
    assert not [name for name in found if "moe" in name or "expert" in name]


def test_a_model_with_biases_and_a_position_table() -> None:
    found = told("gpt3-175b", tp=8)
    assert found["--position-embedding-type"] == ("learned_absolute",)
    assert found["--normalization"] == ("LayerNorm",)
    assert not {"--swiglu", "--untie-embeddings-and-output-weights", "--disable-bias-linear"} & set(found)


def test_biases_of_queries_alone_and_normed_queries() -> None:
    assert {"--disable-bias-linear", "--add-qkv-bias"} <= set(told("qwen2.5-7b"))
    assert "--qk-layernorm" in told("qwen3-32b")


def test_latent_attention_shared_experts_and_multi_token_prediction() -> None:
    found = told("deepseek-v3-671b", ep=4)
    assert "--group-query-attention" not in found
    widths = {"--q-lora-rank": "1536", "--kv-lora-rank": "512", "--qk-head-dim": "128", "--v-head-dim": "128"}
    assert {name: found[name] for name in widths} == {name: (width,) for name, width in widths.items()}
    assert found["--moe-layer-freq"] == ("([0]*3+[1]*58)",)
    assert found["--moe-shared-expert-intermediate-size"] == ("2048",)
    assert found["--moe-router-score-function"] == ("sigmoid",)
    assert found["--mtp-num-layers"] == ("1",)
    assert (found["--expert-model-parallel-size"], found["--expert-tensor-parallel-size"]) == (("4",), ("1",))
    assert found["--moe-token-dispatcher-type"] == ("alltoall",)


@pytest.mark.parametrize(
    "target", ["megatron-lm", "megatron-core-0.13", "megatron-core-0.12", "loongforge", "mindspeed-llm"]
)
def test_gathered_tokens_are_told(target: str) -> None:
    problem = with_host(model_of("mixtral-8x7b"), moe_dispatcher="allgather")
    found = options(exporter(target)(problem, strategy_of("x:32", dp=4, ep=4)))
    assert found["--moe-token-dispatcher-type"] == ("allgather",)


@pytest.mark.parametrize(
    ("target", "fusion", "flags"),
    [
        ("megatron-lm", None, set()),
        ("megatron-lm", "none", {"--no-gradient-accumulation-fusion"}),
        ("megatron-lm", "all", set()),
        ("mindspeed-llm", "none", {"--no-gradient-accumulation-fusion"}),
        ("mindspeed-llm", "dense", set()),
        ("mindspeed-llm", "experts", {"--no-gradient-accumulation-fusion", "--gemm-gradient-accumulation-fusion"}),
        ("mindspeed-llm", "all", {"--gemm-gradient-accumulation-fusion"}),
    ],
)
def test_products_that_add_gradients_up_are_told(target: str, fusion: str | None, flags: set[str]) -> None:
    problem = with_host(model_of("mixtral-8x7b"), gradient_accumulation_fusion=fusion)
    found = options(exporter(target)(problem, strategy_of("x:32", dp=4, ep=4)))
    assert {name for name in found if name.endswith("-gradient-accumulation-fusion")} == flags


def test_mindspeed_adds_gradients_up_apart_as_its_stack_does() -> None:
    problem = with_stack(model_of("mixtral-8x7b"), gradient_sum_bytes=10.0)
    found = options(exporter("mindspeed-llm")(problem, strategy_of("x:32", dp=4, ep=4)))
    assert "--no-gradient-accumulation-fusion" in found
    assert "--gemm-gradient-accumulation-fusion" not in found


def test_mindspeed_counts_dense_layers_and_shared_experts() -> None:
    found = told("deepseek-v3-671b", "mindspeed-llm", ep=4)
    assert (found["--first-k-dense-replace"], found["--moe-layer-freq"]) == (("3",), ("1",))
    assert found["--n-shared-experts"] == ("1",)
    assert "--moe-shared-expert-intermediate-size" not in found
    assert told("baichuan-13b", "mindspeed-llm")["--position-embedding-type"] == ("alibi",)


def test_layers_with_experts() -> None:
    assert expert_layers(load_architecture("mixtral-8x22b")) == "1"
    pattern = expert_layers(load_architecture("llama4-maverick-400b"))
    assert eval(pattern) == [0, 1] * 24


def test_one_expert_a_token_is_scored_before_the_choice() -> None:
    assert "--moe-router-pre-softmax" in told("llama4-maverick-400b")
    assert "--moe-router-pre-softmax" not in told("mixtral-8x22b")


def test_the_vocabulary_is_padded_to_128_a_rank() -> None:
    model = load_architecture("qwen2.5-7b").model_copy(update={"vocab": 1000})
    assert [padded_vocabulary(model, tp) for tp in (1, 4, 8)] == [1024, 1024, 1024]
    assert padded_vocabulary(model, 16) == 2048


@pytest.mark.parametrize(
    ("model", "target", "words"),
    [
        ("baichuan-13b", "megatron-lm", "alibi positions"),
        ("bloom-176b", "megatron-lm", "a norm after the embedding"),
        ("gpt-oss-20b", "megatron-core-0.13", "attention sinks"),
        ("gpt-oss-20b", "megatron-core-0.12", "biases in experts"),
        ("gpt-oss-20b", "megatron-core-0.13", "the activation quick_geglu"),
    ],
)
def test_what_no_option_says_is_noted(model: str, target: str, words: str) -> None:
    problem = model_of(model)
    launch = exporter(target)(problem, strategy_of(f"x:{problem.model.layers}"))
    assert any(words in note for note in launch.notes)


@pytest.mark.parametrize(("model", "said"), [("glm4.5-air-106b-a12b", True), ("deepseek-v3-671b", False)])
def test_the_part_of_a_head_that_turns_is_left_open_where_no_width_says_it(model: str, said: bool) -> None:
    """Half of each in GLM-4.5 (partial_rotary_factor); latent attention has qk_rope."""
    found = exporter("megatron-lm")(model_of(model), strategy_of(f"x:{load_architecture(model).layers}"))
    assert any("--rotary-percent" in note for note in found.notes) is said


def test_routers_whose_bias_is_of_their_product_choose_by_softmax() -> None:
    """GptOssTopKRouter adds it to the scores; Megatron's TopKRouter does where add_bias_linear is on."""
    found = told("gpt-oss-20b")
    assert not {"--moe-router-score-function", "--moe-router-enable-expert-bias", "--disable-bias-linear"} & set(found)
    launch = exporter("megatron-core-0.12")(model_of("gpt-oss-20b"), strategy_of("x:24"))
    assert any("a bias in the router" in note for note in launch.notes)
    assert told("deepseek-v3-671b")["--moe-router-score-function"] == ("sigmoid",)


def test_sinks_and_windows_where_there_are_flags() -> None:
    found = told("gpt-oss-20b")
    assert found["--softmax-type"] == ("learnable",)
    assert (found["--window-size"], found["--window-attn-skip-freq"]) == (("127,0",), ("2",))


def test_layers_without_rotary_embedding_are_told_where_there_is_a_flag() -> None:
    """Every fourth of Llama 4's."""
    assert told("llama4-scout-109b")["--no-rope-freq"] == ("4",)
    five = model_flags(load_architecture("llama4-scout-109b").model_copy(update={"layers": 5}), 8, MEGATRON_LM)
    assert ("--no-rope-freq", "[0,0,0,1,0]") in tuple(five)  # TransformerConfig refuses a number that divides them not
    assert dict(fields([("--no-rope-freq", "[0,0,0,1,0]")])) == {"model.no_rope_freq": [0, 0, 0, 1, 0]}
    launch = exporter("megatron-core-0.12")(model_of("llama4-scout-109b"), strategy_of("x:48"))
    assert any("layers without rotary embedding" in note for note in launch.notes)


def test_gpt_oss_has_its_activation_where_there_are_flags() -> None:
    """Those that examples/gptoss/02_train.sh of Megatron-LM gives."""
    found = told("gpt-oss-20b")
    assert "--swiglu" not in found
    assert found["--quick-geglu"] == ()
    assert (found["--glu-linear-offset"], found["--activation-func-clamp-value"]) == (("1.0",), ("7.0",))
    launch = exporter("megatron-bridge")(model_of("gpt-oss-20b"), strategy_of("x:24"))
    assert "GPTModelProvider(activation_func=quick_gelu, **shape)" in launch.files["plan.py"]
    assert not any("quick_geglu" in note for note in launch.notes)


@pytest.mark.parametrize(
    "target", ["megatron-lm", "megatron-core-0.12", "mindspeed-llm", "loongforge", "megatron-bridge"]
)
def test_every_model_that_can_be_planned_is_exported(target: str) -> None:
    for name in architecture_names():
        model = load_architecture(name)
        trained = not load_launcher(target).untrained(model)
        if trained and not (target == "mindspeed-llm" and model.moe and model.moe.freq > 1):
            launch = exporter(target)(replace(problem_of(), model=model), strategy_of(f"x:{model.layers}"))
            assert f"{model.hidden}" in " ".join(launch.arguments), name
            assert not any("None" in token for token in launch.arguments), name


def test_hybrid_models_are_written_as_a_pattern_of_their_blocks() -> None:
    launch = exporter("megatron-lm")(model_of("nemotron3-nano-30b-a3b"), strategy_of("x:27,25", dp=2, ep=2))
    found = options(launch)
    pattern = load_architecture("nemotron3-nano-30b-a3b").layer_pattern or ""
    assert found["--hybrid-layer-pattern"] == (f"{pattern[:27]}|{pattern[27:]}",)
    assert found["--mamba-num-groups"] == ("8",)
    assert found["--spec"] == ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
    assert "--moe-layer-freq" not in found
    assert "pretrain_hybrid.py" in launch.files["train.sh"]


def test_modules_of_multi_token_prediction_stand_behind_the_pattern_of_a_hybrid() -> None:
    model = load_architecture("nemotron3-super-120b-a12b")
    pattern = model.layer_pattern or ""
    found = options(exporter("megatron-lm")(model_of(model.name), strategy_of("x:44,44", dp=2, ep=2)))
    assert found["--hybrid-layer-pattern"] == (f"{pattern[:44]}|{pattern[44:]}/*E/*E",)
    assert found["--mtp-num-layers"] == ("2",)
    assert found["--mtp-use-repeated-layer"] == ()
    own = replace(problem_of(), model=model.model_copy(update={"mtp_repeated": False}))
    assert "--mtp-use-repeated-layer" not in options(exporter("megatron-lm")(own, strategy_of("x:44,44", dp=2, ep=2)))
    refusing = [name for name in launcher_names() if load_launcher(name).untrained(model)]
    assert sorted(refusing) == sorted(set(launcher_names()) - {"megatron-lm"})


def test_linear_and_sparse_attention_have_flags() -> None:
    linear, sparse = told("qwen3-next-80b-a3b"), told("glm5-744b-a40b")
    assert (linear["--experimental-attention-variant"], linear["--linear-attention-freq"]) == (
        ("gated_delta_net",),
        ("4",),
    )
    assert linear["--linear-num-value-heads"] == ("32",)
    assert (sparse["--experimental-attention-variant"], sparse["--dsa-indexer-topk"]) == (("dsa",), ("2048",))
    assert told("nemotron3-super-120b-a12b")["--moe-latent-size"] == ("1024",)


def test_layers_that_a_target_does_not_train_are_refused() -> None:
    problem = model_of("qwen3-next-80b-a3b")
    told = reasons_against(problem, strategy_of(f"x:{problem.model.layers}"), "megatron-core-0.13")
    assert "megatron-core-0.13 does not train linear attention by a gated delta rule" in told


def bridge(model: str, groups: str, **more: Any) -> tuple[dict[str, str], str]:
    launch = exporter("megatron-bridge")(model_of(model), strategy_of(groups, **more))
    return dict(token.split("=", 1) for token in launch.arguments), launch.files["plan.py"]


def test_bridges_fields() -> None:
    fields, _ = bridge("llama2-70b", "x:20,20,20,20", tp=4, dp=2, vpp=5, flags="sfz")
    assert fields["model.tensor_model_parallel_size"] == "4"
    assert fields["model.virtual_pipeline_model_parallel_size"] == "5"
    assert fields["model.sequence_parallel"] == "true"
    assert fields["train.global_batch_size"] == "8"
    assert fields["ddp.use_distributed_optimizer"] == "true"
    assert fields["mixed_precision"] == "bf16_mixed"
    assert fields["model.share_embeddings_and_output_weights"] == "false"


def test_bridges_file_sets_every_field() -> None:
    fields, text = bridge("deepseek-v3-671b", "x:15,16,17,13", tp=2, dp=2, ep=4, flags="sfz")
    found: dict[str, Any] = {"AttnBackend": SimpleNamespace(auto="auto")}
    body = text.split("if __name__")[0].replace("import torch\n", "").split("def model()")
    exec(body[0][body[0].index("FIELDS") :] + "def configure" + body[1].split("def configure")[1], found)
    assert set(found["FIELDS"]) == {*fields, "model.attention_backend"}
    found["get_mixed_precision_config"] = lambda name: SimpleNamespace(name=name, grad_reduce_in_fp32=None)

    class Part:
        def __getattr__(self, name: str) -> Any:
            self.__dict__[name] = Part()
            return self.__dict__[name]

    cfg = found["configure"](Part())
    assert cfg.model.moe_layer_freq == [0] * 3 + [1] * 58
    assert cfg.model.pipeline_model_parallel_layout == "Et*15|t*16|t*17|t*13mL"
    assert cfg.model.num_moe_experts == 256
    assert "MLAModelProvider" in text
    assert (cfg.mixed_precision.name, cfg.mixed_precision.grad_reduce_in_fp32) == ("bf16_mixed", True)
    assert (cfg.model.recompute_granularity, cfg.model.num_layers_in_first_pipeline_stage) == (None, None)


def test_bridge_takes_back_what_a_recipe_may_have_set() -> None:
    fields, _ = bridge("llama2-70b", "x:20,20,20,20", tp=4, dp=2, flags="fz")
    assert (fields["model.sequence_parallel"], fields["model.virtual_pipeline_model_parallel_size"]) == (
        "false",
        "null",
    )
    assert (fields["model.recompute_granularity"], fields["model.pipeline_model_parallel_layout"]) == ("null", "null")
    assert fields["optimizer.use_precision_aware_optimizer"] == "false"


@pytest.mark.parametrize(("width", "there"), [(2, "False"), (4, "True")])
def test_bridge_reduces_gradients_in_the_plans_type(width: int, there: str) -> None:
    problem = with_stack(model_of("llama2-7b"), gradient_reduce_bytes=width)
    text = exporter("megatron-bridge")(problem, strategy_of("x:32", dp=2)).files["plan.py"]
    assert f"PRECISION = {{'grad_reduce_in_fp32': {there}}}" in text


@pytest.mark.parametrize(
    ("training", "configured", "fields"),
    [
        ({"fp8_recipe": "delayed"}, "bf16_with_fp8_delayed_scaling_mixed", {"fp8_param_gather": False}),
        (
            {"fp8_recipe": "current", "fp8_parameter_gather": True},
            "bf16_with_fp8_current_scaling_mixed",
            {"fp8_param_gather": True, "first_last_layers_bf16": False},
        ),
        ({"fp8_recipe": "blockwise"}, "bf16_with_fp8_subchannel_scaling_mixed", {"fp8_param_gather": False}),
        (
            {"fp8_recipe": "mx", "fp8_parameter_gather": True},
            "bf16_with_mxfp8_mixed",
            {"fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True},
        ),
        ({"precision": "nvfp4"}, "bf16_with_nvfp4_mixed", {"fp4_param_gather": False}),
        (
            {"precision": "nvfp4", "fp8_attention": True},
            "bf16_with_nvfp4_mixed",
            {"fp4_param_gather": False, "fp8_dot_product_attention": True},
        ),
    ],
)
def test_bridges_configuration_of_every_recipe(
    training: dict[str, Any], configured: str, fields: dict[str, bool]
) -> None:
    chip = chip_spec(block_formats=["mx", "nvfp4"])
    chip["peak_tflops"] |= {"fp8": 200, "fp4": 400}
    problem = problem_of({"x": chip}, training={"precision": "fp8", **training})
    launch = exporter("megatron-bridge")(problem, strategy_of("x:4", dp=4, flags="fz"))
    assert f"mixed_precision={configured}" in launch.arguments
    line = next(line for line in launch.files["plan.py"].splitlines() if line.startswith("PRECISION = "))
    found = literal_eval(line.removeprefix("PRECISION = "))
    assert found == {"grad_reduce_in_fp32": True, **fields}
    assert not [token for token in launch.arguments if "fp8" in token.split("=")[0] or "fp4" in token.split("=")[0]]


def ordered(first: int, every: int, offset: int) -> Problem:
    model = load_architecture("mixtral-8x7b")
    assert model.moe is not None
    moe = model.moe.model_copy(update={"first_dense": first, "freq": every, "offset": offset})
    return replace(problem_of(), model=model.model_copy(update={"moe": moe}))


def test_mindspeed_counts_every_nth_layer_from_layer_0() -> None:
    found = options(exporter("mindspeed-llm")(ordered(1, 2, 0), strategy_of("x:32")))
    assert (found["--first-k-dense-replace"], found["--moe-layer-freq"]) == (("1",), ("2",))


@pytest.mark.parametrize(("places", "pp"), [((1, 2, 1), 1), ((0, 2, 0), 1)])
def test_experts_where_mindspeed_has_none_are_refused(places: tuple[int, int, int], pp: int) -> None:
    stages = ",".join([str(32 // pp)] * pp)
    with pytest.raises(CannotExpress, match="experts"):
        exporter("mindspeed-llm")(ordered(*places), strategy_of(f"x:{stages}"))


def test_mindspeed_has_no_mc2_beside_experts() -> None:
    dense, experts = (with_stack(model_of(name), tensor_overlap=0.3) for name in ("llama2-7b", "mixtral-8x7b"))
    plan = strategy_of("x:32", tp=2, flags="sf")
    assert "--use-ascend-mc2" in options(exporter("mindspeed-llm")(dense, plan))
    launch = exporter("mindspeed-llm")(experts, plan)
    assert "--use-ascend-mc2" not in options(launch)
    assert any("--use-ascend-mc2 excludes" in note for note in launch.notes)


def test_bridge_turns_off_what_recipes_turn_on_by_themselves() -> None:
    """One of ddp and optimizer turns the other's distributed optimizer on (training/config.py): both are told."""
    fields, text = bridge("llama2-7b", "x:32", dp=4, flags="")
    assert fields["optimizer.use_distributed_optimizer"] == fields["ddp.use_distributed_optimizer"] == "false"
    assert fields["optimizer.overlap_param_gather"] == fields["ddp.overlap_param_gather"] == "false"
    assert "'model.attention_backend': AttnBackend.unfused," in text
    assert "model.attention_backend" not in fields
