"""Arguments of launch scripts: what each says of the plan, the model and the training."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from cpsolver.doors.importing.output import model_text, spec_text, strategy_text
from cpsolver.inputs.document import parse_yaml
from cpsolver.inputs.errors import InputError
from models_zoo import Architecture
from tests.support.command import in_tmp  # noqa: F401
from tests.support.scripts import GPT, LLAMA, MOE, STEP, imported, plan, torchrun

TP = "--tensor-model-parallel-size 2"
PARTITIONED = "--checkpoint-activations --deepspeed --partition-activations"
LATENT = "--multi-latent-attention --q-lora-rank 64 --kv-lora-rank 64 "


def test_names_of_files_and_chips_stay_in_their_comments_and_values() -> None:
    """A line break in a source's name, or U+2028 in a chip's, is no line of the spec or of the plan."""
    found = imported(torchrun(f"{LLAMA} {STEP}"))
    assert found.strategy is not None
    chip = "h100\u2028\x85\nz"
    plan = replace(found.strategy, groups=tuple(replace(group, chip=chip) for group in found.strategy.groups))
    text = strategy_text(plan, "a\ntp: 4\r\u2028.sh")
    assert text.splitlines()[0] == r"# The plan that a\ntp: 4\r\u2028.sh runs."
    assert parse_yaml(text).data["stages"][0]["chip"] == chip
    assert spec_text(replace(found, source="a\nb.sh")).startswith("# Imported from a\\nb.sh.\n")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ("--context-parallel-size 2 --cp-comm-type a2a", {"ulysses": 2, "cp_gather": False}),
        ("--context-parallel-size 2 --cp-comm-type allgather", {"ulysses": 1, "cp_gather": True}),
        ("--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo", {"ulysses": 2}),
        ("--context-parallel-size 2 --context-parallel-algo kvallgather_cp_algo", {"cp_gather": True}),
        (
            "--context-parallel-size 8 --cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 4 2",
            {"cp": 8, "ulysses": 4},
        ),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 2", {"sharding_group": 4}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"sharded": "gradients"}),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", {"distributed_optimizer": False}),
        ("--overlap-moe-expert-parallel-comm --recompute-activations", {"expert_overlap": True}),
        ("--recompute-activations", {"recompute_modules": (("core_attn",),)}),
        ("--recompute-granularity full --recompute-method block --recompute-num-layers 0", {"recompute": ("none",)}),
        ("--recompute-modules core_attn mlp", {"recompute": ("none",)}),
        ("--moe-layer-recompute", {"recompute_modules": (("core_attn", "moe"),)}),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 --custom-pipeline-layers 16,16 "
            "--recompute-granularity full --recompute-method block --custom-pipeline-recompute-layers 16,16",
            {"vpp": 4, "recompute": ("uniform", "uniform"), "recompute_layers": (1, 1)},
        ),
        (
            "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --global-batch-size 12 "
            "--microbatch-group-size-per-virtual-pipeline-stage 6",
            {"schedule": "breadth_first", "dp": 2},
        ),
        ("--pipeline-model-parallel-size 4 --enable-zero-bubble", {"schedule": "zb1p"}),
        ("--pipeline-model-parallel-size 4 --enable-zbh1-pipeline", {"schedule": "zb1p"}),
        (
            "--pipeline-model-parallel-size 4 --enable-zero-bubble --zero-bubble-max-pending-backward 8",
            {"schedule": "zb2p"},
        ),
        (
            "--pipeline-model-parallel-size 4 --schedules-method dualpipev",
            {"schedule": "dualpipev", "vpp": 2, "layers": (8, 8, 8, 8)},
        ),
        (
            "--pipeline-model-parallel-size 4 --schedules-method dualpipev --noop-layers 31",
            {"schedule": "dualpipev", "vpp": 2, "layers": (7, 8, 8, 8), "slots": (0, 1)},
        ),
        (
            "--pipeline-model-parallel-size 4 --schedules-method dualpipev --noop-layers 7,27,31",
            {"schedule": "dualpipev", "vpp": 2, "layers": (7, 6, 8, 8), "slots": (0, 1)},
        ),
        (
            "--pipeline-model-parallel-size 4 --enable-zero-bubble --zero-bubble-v-schedule",
            {"schedule": "zbv", "vpp": 2, "layers": (8, 8, 8, 8)},
        ),
        (
            "--pipeline-model-parallel-size 4 --zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup half",
            {"schedule": "v_half", "vpp": 2, "layers": (8, 8, 8, 8)},
        ),
        (
            "--pipeline-model-parallel-size 4 --zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup min",
            {"schedule": "v_min", "vpp": 2, "layers": (8, 8, 8, 8)},
        ),
        ("--use-flash-attn --attention-backend local", {"flash_attention": True}),
        ("--transformer-impl local", {"flash_attention": False}),
        ("--transformer-impl local --attention-backend auto", {"flash_attention": True}),
        ("--attention-backend auto", {"flash_attention": True}),
        ("--pipeline-model-parallel-size 2 --noop-layers 31", {"layers": (16, 15)}),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 --noop-layers 30,31",
            {"layers": (16, 14), "slots": (0, 2)},
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*4|t*3|(t*4|t*3|)*3t*4|L'",
            {"vpp": 5, "layers": (20, 12), "slots": (0, 3)},
        ),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 --global-batch-size 32 "
            "--microbatch-group-size-per-virtual-pipeline-stage 8",
            {"schedule": "breadth_first", "vpp": 4},
        ),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 4 --recompute-granularity full "
            "--recompute-method block --recompute-num-layers 8 --enable-recompute-layers-per-pp-rank",
            {"recompute_layers": (2, 2)},
        ),
        (
            "--pipeline-model-parallel-size 2 --pipeline-num-transformer-layers [[8,8],[8,8]]",
            {"vpp": 2, "layers": (16, 16)},
        ),
    ],
)
def test_argument_to_value(arguments: str, values: dict[str, Any]) -> None:
    found = plan(torchrun(f"{LLAMA} {STEP} {arguments}"))
    assert {key: getattr(found, key) for key in values} == values


def test_ends_that_count_for_a_layer() -> None:
    text = LLAMA.replace("32 --hidden", "30 --hidden") + STEP + "--pipeline-model-parallel-size 4"
    both = " --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    assert plan(torchrun(text + both)).layers == (7, 8, 8, 7)
    assert plan(torchrun(text + both + " --num-virtual-stages-per-pipeline-rank 2")).slots == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ("--reuse-fp32-param", {"reuse_fp32_parameters": True, "precision": "bf16"}),
        ("--swap-attention", {"activation_offload": ["attn_norm", "attention", "mlp_norm"]}),
        ("--swap-attention --swap-modules self_attention", {"activation_offload": ["attention"]}),
        (
            "--fine-grained-activation-offloading --offload-modules core_attn attn_proj",
            {"activation_offload": ["core_attn", "attn_proj"]},
        ),
        (
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --use-precision-aware-optimizer",
            {"optimizer_offload": 0.5, "optimizer": "precision_aware"},
        ),
        ("--cpu-offloading-num-layers 8", {"offload_layers": 8}),
        ("--recompute-activation-function", {"recompute_activation_function": True}),
        (f"--recompute-mla-up-proj {LATENT}", {"recompute_mla_up_proj": True}),
        (f"--distribute-saved-activations {TP}", {"distribute_saved_activations": True}),
        (f"--distribute-checkpointed-activations {TP}", {"distribute_saved_activations": True}),
        (f"{PARTITIONED} --deepspeed-activation-checkpointing {TP}", {"distribute_saved_activations": True}),
        (PARTITIONED, {"distribute_saved_activations": None}),
        (f"--recompute-mla-up-proj --schedules-method dualpipev {LATENT}", {"recompute_mla_up_proj": True}),
        (
            "--recompute-activation-function --recompute-activation-function-num-layers 30 "
            "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
            {"recompute_activation_function": True},
        ),
        ("--swap-optimizer --use-distributed-optimizer", {"swap_optimizer": True}),
        (
            "--fp8-format hybrid --fp8-param-gather",
            {"precision": "fp8", "fp8_parameter_gather": True, "fp8_recipe": "delayed"},
        ),
        ("--fp8-format e4m3 --fp8-recipe tensorwise", {"fp8_recipe": "current", "fp8_parameter_gather": False}),
        ("--fp8-format e4m3 --fp8-recipe blockwise", {"fp8_recipe": "blockwise"}),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", {"cuda_graph": "full"}),
        ("--cuda-graph-impl full_iteration", {"cuda_graph": "full"}),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn moe_router", {"cuda_graph": "te"}),
        ("--moe-token-dispatcher-type alltoall", {"moe_dispatcher": "alltoall"}),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", {"moe_dispatcher": "deepep"}),
        (
            "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep",
            {"moe_dispatcher": "hybridep"},
        ),
        ("--hidden-dropout 0.1", {"dropout": True}),
        ("--optimizer lion", {"optimizer": "lion"}),
        ("--o2-optimizer", {"optimizer": "o2_adamw"}),
        ("--optimizer muon --muon-tp-mode duplicated", {"optimizer": "muon", "muon_tp_mode": "duplicated"}),
        ("--optimizer soap", {"optimizer": "soap", "muon_tp_mode": None}),
        ("--optimizer muon --muon-fp32-matmul-prec medium", {"optimizer": "muon", "muon_tp_mode": "blockwise"}),
        ("--seq-length=2048 --global-batch-size 128", {"sequence_length": 2048, "global_batch_size": 128}),
    ],
)
def test_argument_to_the_spec_s_training(arguments: str, fields: dict[str, Any]) -> None:
    training = imported(torchrun(f"{LLAMA} {STEP} {arguments}")).spec["training"]
    assert {name: training.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", True),
        ('export PYTORCH_NPU_ALLOC_CONF="max_split_size_mb:512, expandable_segments:True"', True),
        ("PYTORCH_ALLOC_CONF=expandable_segments:False", None),
        ("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512", None),
        ("", None),
    ],
)
def test_what_the_environment_tells_the_allocator(line: str, said: bool | None) -> None:
    """Nothing where the stack's runs tell it the same."""
    training = imported(f"{line}\n{torchrun(f'{LLAMA} {STEP}')}").spec["training"]
    assert training.get("expandable_segments") is said


@pytest.mark.parametrize(
    ("arguments", "level", "told"),
    [
        ("--moe-zero-memory level0", "level0", ""),
        ("--moe-zero-memory level1 --moe-zero-memory-num-layers 32", "level1", ""),
        ("--moe-zero-memory level1 --moe-zero-memory-num-layers 3", "level0", "level1 is level0"),
        ("--moe-zero-memory level1 --moe-fb-overlap", "level0", "level1 is level0"),
        ("--moe-zero-memory disable", None, ""),
        (
            "--moe-zero-memory level0 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            None,
            "beside recomputation of kind uniform",
        ),
        ("--moe-zero-memory level0 --expert-model-parallel-size 1", None, "ep 1"),
    ],
)
def test_experts_that_keep_little(arguments: str, level: str | None, told: str) -> None:
    found = imported(torchrun(f"{MOE} {STEP} --expert-model-parallel-size 8 {arguments}"))
    assert found.spec["training"].get("moe_zero_memory") == level
    said = [note for note in found.notes if "--moe-zero-memory" in note]
    assert len(said) == bool(told)
    assert told in "".join(said)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        (
            "--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag",
            {"fp8_recipe": "mx", "fp8_parameter_gather": True},
        ),
        ("--fp4-format e2m1", {"precision": "nvfp4", "fp8_parameter_gather": False, "fp8_recipe": None}),
        (
            "--fp4-format e2m1 --fp4-recipe nvfp4 --fp4-param-gather",
            {"precision": "nvfp4", "fp8_parameter_gather": True},
        ),
    ],
)
def test_formats_of_blocks_to_the_spec_s_training(arguments: str, fields: dict[str, Any]) -> None:
    found = imported(torchrun(f"{LLAMA} {STEP} {arguments} --use-distributed-optimizer"), chip="gb200")
    assert {name: found.spec["training"].get(name) for name in fields} == fields
    assert not found.unknown


def test_a_recipe_of_ones_own_is_not_planned_for() -> None:
    with pytest.raises(InputError, match="--fp8-recipe"):
        imported(torchrun(f"{LLAMA} {STEP} --fp8-format e4m3 --fp8-recipe custom"))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (LLAMA, "llama2-7b"),
        (LLAMA.replace("--max-position-embeddings 4096", "--max-position-embeddings 2048"), "llama-7b"),
        (MOE + "--max-position-embeddings 32768 ", "mixtral-8x7b"),
        (
            "--num-layers 64 --noop-layers 61,62,63 --hidden-size 7168 --ffn-hidden-size 18432 "
            "--num-attention-heads 128 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --qk-layernorm "
            "--num-experts 256 "
            "--moe-router-topk 8 --moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
            "--moe-layer-freq ([0]*3+[1]*61) --moe-router-enable-expert-bias --mtp-num-layers 1 --vocab-size 129280 "
            "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
            "--untie-embeddings-and-output-weights --max-position-embeddings 4096 ",
            "deepseek-v3-671b",
        ),
    ],
)
def test_a_model_of_the_catalogue_is_named(arguments: str, name: str) -> None:
    found = imported(torchrun(f"{arguments.replace('(', chr(39) + '(').replace('61)', '61)' + chr(39))} {STEP}"))
    assert found.spec["model"] == name


def test_another_model_is_written_with_its_fields() -> None:
    found = imported(torchrun(GPT))
    assert found.spec["model"] == {
        "name": "imported",
        "layers": 24,
        "hidden": 2048,
        "ffn": 8192,
        "heads": 16,
        "kv_heads": 16,
        "max_positions": 1024,
        "gated_mlp": False,
        "activation": "gelu",
        "norm": "layernorm",
        "position": "learned",
        "tied_embeddings": True,
        "bias_qkv": True,
        "bias_attention_out": True,
        "bias_mlp": True,
        "vocab": 50257,
    }
    assert found.spec["training"]["global_batch_size"] == 16  # micro batch x dp where none is given
    assert found.spec["training"]["dropout"] is True


@pytest.mark.parametrize(
    ("places", "values"),
    [
        ("--moe-layer-freq ([0,1]*16)", {"first_dense": 0, "freq": 2, "offset": 1}),
        ("--moe-layer-freq ([0]*3+[1]*29) --noop-layers 0,31", {"first_dense": 2, "freq": 1}),
        ("--moe-layer-freq ([0]+([1])*1)*16", {"first_dense": 0, "freq": 2, "offset": 1}),
        ("--moe-layer-freq ([0]*4+[1]*28)", {"first_dense": 4, "freq": 1}),
    ],
)
def test_layers_with_experts(places: str, values: dict[str, int]) -> None:
    name, pattern, *more = places.split()
    moe = imported(torchrun(f"{MOE} {STEP} {name} '{pattern}' {' '.join(more)}")).model.moe
    assert {key: getattr(moe, key) for key in values} == values


def test_a_pattern_of_more_layers_than_any_model_has_is_refused_before_it_is_made() -> None:
    imported(torchrun(f"{MOE} {STEP}"))  # what is loaded once
    tracemalloc.start()
    with pytest.raises(InputError, match="moe-layer-freq"):
        imported(torchrun(f"{MOE} {STEP} --moe-layer-freq '(([0]*9999)*9999)'"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def test_windows_sinks_and_long_contexts() -> None:
    more = "--window-size 127,0 --window-attn-skip-freq 2 --softmax-type learnable --max-position-embeddings 10485760"
    model = imported(torchrun(f"{LLAMA} {STEP} {more}")).model
    assert (model.attention.sliding_window, model.attention.full_every, model.attention.sinks) == (128, 2, True)
    assert model.max_positions == 10_485_760
    assert imported(torchrun(f"{LLAMA} {STEP} --no-rope-freq 4")).model.attention.no_rope_every == 4


def test_a_quick_gate_is_a_gate() -> None:
    """Without --ffn-hidden-size it is as wide as without a gate: validate_args asks for --swiglu."""
    llama = LLAMA.replace("--swiglu", "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0")
    model = imported(torchrun(f"{llama} {STEP}")).model
    assert (model.gated_mlp, model.activation, model.gate_offset, model.activation_clamp) == (True, "quick_geglu", 1, 7)
    assert imported(torchrun(f"{LLAMA} {STEP}")).model.activation == "swiglu"
    found = imported(torchrun(f"{llama.replace('--ffn-hidden-size 11008 ', '')} {STEP}")).model
    assert found.ffn == 4 * found.hidden


def test_a_launcher_whose_profile_lacks_what_the_script_runs_is_left_out() -> None:
    found = imported(torchrun(f"{LLAMA} {STEP} --optimizer lion"))
    assert "launcher" not in found.spec
    assert any("no launcher is written: training.optimizer: launcher megatron-lm" in note for note in found.notes)


def test_an_encoder_of_images_is_named_beside_the_text_model() -> None:
    vision = {"layers": 24, "hidden": 1024, "ffn": 4096, "heads": 16, "merge": 2}
    plain = {"name": "x", "layers": 2, "hidden": 1024, "ffn": 2048, "heads": 8, "vocab": 1000}
    told = model_text(Architecture.model_validate({**plain, "vision": vision}))
    assert told.endswith("beside it an encoder of images of 0.31 billion (training.images plans it too)")
    assert "encoder" not in model_text(Architecture.model_validate(plain))
