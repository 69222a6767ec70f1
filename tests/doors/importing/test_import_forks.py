"""Scripts of Megatron's forks and older versions: names of arguments, DeepSpeed's file in the script, Slurm's chips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpsolver.doors.importing.imported import Imported, ImportOptions, import_source
from cpsolver.doors.importing.scope import OutOfScopeError
from cpsolver.inputs.errors import InputError
from cpsolver.problem.resolve import resolve
from cpsolver.rules import violations
from cpsolver.spec.spec import parse_spec
from tests.support.command import in_tmp  # noqa: F401
from tests.support.scripts import LLAMA, STEP, imported, plan, torchrun

PLAIN = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --vocab-size 50304 --seq-length 1024 "
    "--max-position-embeddings 1024 --fp16 "
)
"""Sizes of a GPT, without batch and positions."""
STEPS = "--micro-batch-size 2 --global-batch-size 64 "


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ("", {"position": "learned", "kv_heads": 16, "gated_mlp": False, "ffn": 8192}),
        ("--use-rotary-position-embeddings", {"position": "rope"}),
        ("--no-position-embedding --use-rotary-position-embeddings", {"position": "rope"}),
        ("--use-llama2-rotary-position-embeddings", {"position": "rope"}),
        ("--position-embedding-type rotary", {"position": "rope"}),
        ("--no-position-embedding", {"position": "none"}),
        ("--no-position-embedding --use-alibi-mask", {"position": "alibi"}),
        ("--position-embedding-type alibi --embed-layernorm", {"position": "alibi", "embedding_norm": True}),
        ("--num-key-value-heads 4", {"kv_heads": 4}),
        ("--n-head-kv 8", {"kv_heads": 8}),
        ("--attention-head-type multiquery", {"kv_heads": 1}),
        ("--attention-head-type multihead", {"kv_heads": 16}),
        ("--glu-activation geglu", {"gated_mlp": True, "activation": "geglu", "ffn": 8192}),
        ("--swiglu", {"gated_mlp": True, "activation": "swiglu", "ffn": 5440}),
        ("--disable-bias-linear --add-dense-bias", {"bias_attention_out": True, "bias_mlp": False}),
    ],
)
def test_names_of_forks_make_the_model(arguments: str, fields: dict[str, Any]) -> None:
    """Widths: 4 x 2048; of a gated one 2/3 of that in whole 64s, which BigScience's option leaves alone."""
    model = imported(torchrun(f"{PLAIN} {STEPS} {arguments}")).model
    assert {name: getattr(model, name) for name in fields} == fields


def test_a_gate_that_no_architecture_says_is_refused() -> None:
    with pytest.raises(InputError, match="--glu-activation"):
        imported(torchrun(f"{PLAIN} {STEPS} --glu-activation reglu"))


def test_names_of_the_first_megatron_are_todays() -> None:
    """As DeepSpeed's examples on Megatron-LM 1.1.5 write them: 16 devices are tp 4 x pp 2 x dp 2."""
    old = "--model-parallel-size 4 --pipe-parallel-size 2 --batch-size 4 --gas 8 --checkpoint-activations"
    found = plan(torchrun(f"{PLAIN} {old} --checkpoint-num-layers 2", devices=16))
    assert (found.tp, found.pp, found.dp, found.mbs) == (4, 2, 2, 4)
    assert (found.recompute, found.recompute_layers) == (("uniform", "uniform"), (2, 2))
    assert imported(torchrun(f"{PLAIN} {old}", devices=16)).spec["training"]["global_batch_size"] == 4 * 2 * 8
    both = torchrun(f"{PLAIN} {STEPS} --batch-size 1")
    assert plan(both).mbs == 2


WRITTEN = """
ZERO=3
cat <<EOT > $FILE
{
  "zero_optimization": {
    "stage": %s,
    "offload_optimizer": {"device": "%s"}
  }
}
EOT
"""


def test_that_file_counts_beside_a_stage_of_the_arguments() -> None:
    """It is what the engine reads, offload and stage, and no comment in it; weights on the host too."""
    text = '#  "offload_optimizer": {"device": "none"}\n' + WRITTEN % ("3", "cpu")
    text = text.replace('"stage": 3,', '"stage": 3, "offload_param": {"device": "cpu"},')
    found = imported(text + torchrun(f"{PLAIN} {STEPS} --deepspeed --zero-stage 1 --deepspeed_config $FILE"))
    assert found.strategy is not None
    assert found.strategy.sharded == "parameters"
    assert found.spec["training"]["optimizer_offload"] == 1.0
    assert found.spec["training"]["parameter_offload"] is True
    assert any(note.endswith("ZeRO stage 3, whatever --zero-stage 1 says") for note in found.notes)
    beside = WRITTEN.replace("%s", "$NOWHERE", 1) % "cpu"
    found = imported(beside + torchrun(f"{PLAIN} {STEPS} --deepspeed --zero-stage 1 --deepspeed_config $FILE"))
    assert found.spec["training"]["optimizer_offload"] == 1.0
    alone = imported(torchrun(f"{PLAIN} {STEPS} --deepspeed --zero-stage 1 --deepspeed_config nowhere.json"))
    assert any(note.startswith("DeepSpeed's own file is not read: what it says") for note in alone.notes)


def test_stages_in_braces_and_weights_that_stay() -> None:
    """JSON may stand in one line, braces against the number, and offload_param may name no device at all."""
    one = 'cat <<EOT > $FILE\n{"zero_optimization": {"stage": 3}}\nEOT\n'
    train = torchrun(f"{PLAIN} {STEPS} --deepspeed --deepspeed_config $FILE")
    assert plan(one + train).sharded == "parameters"
    stays = WRITTEN.replace('"stage": %s,', '"stage": ${ZERO}, "offload_param": {"device": "none"},') % "none"
    found = imported(stays + train)
    assert found.strategy is not None
    assert found.strategy.sharded == "parameters"
    assert not any("offload_param" in note for note in found.notes)
    assert "parameter_offload" not in found.spec["training"]


@pytest.mark.parametrize(
    ("arguments", "away"),
    [
        ("--deepspeed --deepspeed-activation-checkpointing --checkpoint-in-cpu", True),
        ("--deepspeed-activation-checkpointing --checkpoint-in-cpu", None),
        ("--deepspeed --checkpoint-in-cpu", None),
        ("--deepspeed --deepspeed-activation-checkpointing", None),
    ],
)
def test_checkpoints_on_the_host(arguments: str, away: bool | None) -> None:
    found = imported(torchrun(f"{PLAIN} {STEPS} --checkpoint-activations {arguments}"))
    assert found.spec["training"].get("cpu_checkpointing") == away


@pytest.mark.parametrize(
    ("stage", "device", "sharded", "offload"),
    [("$ZERO", "cpu", "parameters", 1.0), ("1", "none", "optimizer", None), ("$NOWHERE", "cpu", None, None)],
)
def test_the_file_of_deepspeed_that_a_script_writes(stage: str, device: str, sharded: Any, offload: Any) -> None:
    text = WRITTEN % (stage, device)
    found = imported(text + torchrun(f"{PLAIN} {STEPS} --deepspeed --deepspeed_config $FILE"))
    assert found.strategy is not None
    assert (found.strategy.sharded if found.strategy.distributed_optimizer else None) == sharded
    assert found.spec["training"].get("optimizer_offload") == offload
    told = "script writes: ZeRO stage" if sharded else "is not read: its ZeRO stage is taken as 0"
    assert any(told in note for note in found.notes)


def test_an_old_flag_is_of_ascendspeed_on_ascend_alone() -> None:
    """--DDP-impl is of Megatron up to 2.6: on other chips gate and up projection are one product."""
    text = torchrun(f"{LLAMA} {STEP} --DDP-impl local")
    found, ascend = imported(text), imported(f"export HCCL_TIMEOUT=1\n{text}", chip="ascend_910b")
    assert (found.spec["stack"], found.spec["training"].get("fused_gate_up")) == ("megatron-core-plain", None)
    assert (ascend.spec["stack"], ascend.spec["training"].get("fused_gate_up")) == ("ascendspeed", False)


@pytest.mark.parametrize(
    ("asked", "chip"),
    [
        ("--constraint=v100-32g", "v100_32g"),
        ("-C a100", "a100"),
        ("--gres=gpu:h100:8", "h100"),
        ("--gpus-per-node=h200:8", "h200"),
        ("--gres=gpu:8", None),
        ("--constraint=a100|h100", None),
    ],
)
def test_slurm_is_asked_for_chips(tmp_path: Path, asked: str, chip: str | None) -> None:
    def read(**options: Any) -> Imported:
        return import_source(str(tmp_path / "run.sh"), ImportOptions(**options))

    text = f"#!/bin/bash\n#SBATCH {asked}\n{torchrun(f'{PLAIN} {STEPS}')}"
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    found = read()
    assert found.spec["cluster"]["chips"] == (chip or "fill-me-in")
    assert [note for note in found.notes if "#SBATCH" in note] == (
        [f"#SBATCH lines ask for {chip}: taken for the chip"] if chip else []
    )
    assert read(chip="mi300x").spec["cluster"]["chips"] == "mi300x"


LATENT = "--multi-latent-attention --qk-head-dim 64 --qk-pos-emb-head-dim 32 --q-lora-rank 128 --qk-layernorm "
OF_ITS_OWN = "--spec mindspeed_llm.tasks.models.spec.{} layer_spec --position-embedding-type {} "
COMPRESSED = OF_ITS_OWN.format("deepseek4_spec", "deepseek4") + LATENT + "--kv-compress --enable-dsa-indexer "


def test_mindspeeds_compressed_keys_and_hyper_connections_are_read() -> None:
    """Layers that do nothing have a ratio, too, unless they are the last; a ratio of 1 compresses nothing."""
    more = (
        "--compress-ratios 1 4 4 128 --index-topk 64 --num-layers 5 --noop-layers 1,4 --enable-mhc --n-hash-layers 2 "
    )
    model = imported(torchrun(f"{LLAMA} {STEP} {EXPERTS} {COMPRESSED} {more}")).model
    assert (model.layers, model.residual_streams, model.head_dim, model.kv_heads) == (3, 4, 64, 1)
    attention = model.attention
    assert (attention.kind, attention.compression, attention.sinks) == ("csa", (0, 4, 128), True)
    assert (attention.q_lora, attention.o_lora, attention.o_groups, attention.sliding_window) == (128, 1024, 8, 128)
    assert attention.indexer is not None
    assert (attention.indexer.heads, attention.indexer.topk) == (64, 64)
    assert model.moe is not None
    assert model.moe.hash_routed_layers == 2


@pytest.mark.parametrize(
    ("ratios", "told"),
    [("4 128", "has 2 numbers for 32 layers"), ("128 " * 31 + "8", "the smallest above 1"), ("4.5", "whole numbers")],
)
def test_ratios_that_mindspeed_would_not_run_are_refused(ratios: str, told: str) -> None:
    with pytest.raises(InputError, match=f"--compress-ratios.*{told}"):
        imported(torchrun(f"{LLAMA} {STEP} {COMPRESSED} --compress-ratios {ratios}"))


def test_longcats_layers_are_read() -> None:
    script = f"{LLAMA} {STEP} {EXPERTS} {OF_ITS_OWN.format('longcat_spec', 'rope')} {LATENT} --num-zero-experts 4"
    found = imported(torchrun(script))
    assert found.model.moe is not None
    assert (found.model.moe.zero_experts, found.model.moe.shortcut) == (4, True)
    assert not any("--spec" in note for note in found.notes)


SWAPPED = "--use-flash-attn --use-fused-rmsnorm --pipeline-model-parallel-size 4 --swap-attention "
EXPERTS = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 2 "


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        ("--recompute-num-layers 8", ("mlp",)),
        ("--recompute-num-layers 8 " + EXPERTS, ("moe",)),
        ("--recompute-num-layers 8 --first-k-dense-replace 1 " + EXPERTS, ("mlp", "moe")),
        ("--recompute-num-layers 4 --num-layers-per-virtual-pipeline-stage 4", ("mlp",)),
        ("--recompute-num-layers 7 " + EXPERTS, None),
        ("--recompute-num-layers 1 --recompute-method uniform", ("mlp",)),
        ("--recompute-num-layers 7 --recompute-method block", None),
        ("--recompute-num-layers 7 --num-layer-list 7,9,8,8", None),
    ],
)
def test_blocks_beside_swapped_attention_are_recomputed(arguments: str, modules: tuple[str, ...] | None) -> None:
    """32 layers over 4 stages, 8 each: what is recomputed in all of them is a plan's, less is told where layers or
    stages are not alike, or where no other layers are swapped: then the plan has too little memory."""
    found = imported(torchrun(f"{LLAMA} {STEP} {SWAPPED} {arguments}"), chip="ascend_910b")
    assert found.strategy is not None
    chosen = found.strategy.recompute_modules[0]
    assert chosen == (modules or ())
    errs = [note.rpartition(" ")[2] for note in found.notes if "--swap-attention" in note]
    assert errs == ([] if modules else ["low"] if "block" in arguments else ["short"])


@pytest.mark.parametrize(
    ("arguments", "blocks"),
    [
        ("--recompute-num-layers 7", 28),
        ("--recompute-num-layers 3 --num-layers-per-virtual-pipeline-stage 4", 24),
        (
            "--recompute-num-layers 4 --num-layers-per-virtual-pipeline-stage 4 --enable-recompute-layers-per-pp-rank",
            16,
        ),
    ],
)
def test_blocks_of_some_layers_beside_swapped_attention_are_the_spec_s(arguments: str, blocks: int) -> None:
    """Seven of a stage's eight layers; three of each of two chunks; four of a stage's."""
    found = imported(torchrun(f"{LLAMA} {STEP} {SWAPPED} --use-mcore-models {arguments}"), chip="ascend_910b")
    assert found.spec["training"]["recompute_mlp_layers"] == blocks
    assert found.spec["search"] == {"layer_split": "even"}
    assert not any("beside --swap-attention" in note for note in found.notes)
    assert found.strategy is not None
    assert not [each for each in violations(resolve(parse_spec(found.spec)), found.strategy) if each.rule != "memory"]


@pytest.mark.parametrize("uniform", [False, True])
def test_attention_s_results_wait_on_the_host_beside_whole_layers(uniform: bool) -> None:
    kind = " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1" * uniform
    found = imported(torchrun(f"{LLAMA} {STEP} --mla-swap-core-attn-out --schedules-method dualpipev{kind} {LATENT}"))
    assert found.spec["training"].get("mla_swap_core_attn_out", False) is not uniform
    assert any("--mla-swap-core-attn-out is not in the plan" in note for note in found.notes) is uniform


def test_modules_that_wait_have_megatron_cores_names() -> None:
    core = f"{LLAMA} {STEP} --use-flash-attn --use-mcore-models --swap-attention"
    assert imported(torchrun(core)).spec["training"]["activation_offload"] == ["attention"]
    both = imported(torchrun(f"{core} --swap-modules input_layernorm,pre_mlp_layernorm"))
    assert both.spec["training"]["activation_offload"] == ["attn_norm", "mlp_norm"]


@pytest.mark.parametrize(
    ("argument", "told"),
    [("--no-pad-to-seq-lengths", ": sequences"), ("--variable-seq-lengths", ": until 2025 sequences")],
)
def test_instructions_are_padded_unless_the_script_says_no(argument: str, told: str) -> None:
    found = imported(torchrun(f"{LLAMA} {STEP} --is-instruction-dataset {argument}"))
    """c77308a1 asks for --no-pad-to-seq-lengths; before, --variable-seq-lengths said so."""
    assert any(f"{told} as long as their data" in note for note in found.notes)


@pytest.mark.parametrize(
    ("arguments", "recomputed"),
    [
        ("--recompute-granularity full --recompute-method uniform --deepspeed", ("uniform", 1)),
        ("--recompute-granularity full --recompute-method block --num-key-value-heads 4", ("block", 1)),
        ("--recompute-granularity full --recompute-activations", ("selective", 0)),
        ("--recompute-activations --recompute-granularity full --recompute-num-layers 2", ("selective", 0)),
    ],
)
def test_what_recomputation_is_without_its_number_or_method(arguments: str, recomputed: tuple[str, int]) -> None:
    """Megatron-DeepSpeed takes one layer; --recompute-activations counts before --recompute-granularity anywhere."""
    found = plan(torchrun(f"{PLAIN} {STEPS} {arguments}"))
    assert (found.recompute[0], found.recompute_layers[0]) == recomputed


def test_a_number_of_recomputed_layers_is_asked_for_elsewhere() -> None:
    full = "--recompute-granularity full"
    with pytest.raises(InputError, match=r"--recompute-num-layers.*must be given"):
        imported(torchrun(f"{PLAIN} {STEPS} {full} --recompute-method uniform"))
    with pytest.raises(InputError, match=r"--recompute-method.*goes with"):
        imported(torchrun(f"{PLAIN} {STEPS} {full} --recompute-method uniform --recompute-activations"))


@pytest.mark.parametrize(
    ("arguments", "flash"),
    [
        ("--data-impl mmap", False),
        ("--data-impl mmap --use-flash-attn", True),
        ("--data-impl mmap --transformer-impl transformer_engine", True),
        ("--checkpoint-activations", False),
    ],
)
def test_megatron_before_its_core_has_no_flash_attention_of_its_own(arguments: str, flash: bool) -> None:
    assert plan(torchrun(f"{PLAIN} {STEPS} {arguments}")).flash_attention is flash


def test_a_window_by_mindspeeds_name() -> None:
    assert imported(torchrun(f"{PLAIN} {STEPS} --sliding-window 512")).model.attention.sliding_window == 512


def test_devices_that_deepspeed_includes() -> None:
    line = f"deepspeed --include a-1:0,1,2,3@b:4,5,6,7 pretrain_gpt.py {PLAIN} {STEPS} --deepspeed"
    assert imported(line).spec["cluster"] == {"num_gpus": 8, "gpus_per_node": 4, "chips": "h100"}
    with pytest.raises(InputError, match="how many devices"):
        imported(line.replace(":0,1,2,3", ""))


def test_nodes_that_grid_engine_is_asked_for() -> None:
    """ABCI's and TSUBAME's own names for whole nodes."""
    line = f"mpirun -np $((NHOSTS * 4)) -npernode 4 python pretrain_gpt.py {PLAIN} {STEPS}"
    for asked in ("rt_F=2", "rt_AF=2", "node_f=2"):
        found = imported(f"#!/bin/bash\n#$ -l {asked}\n#$ -l h_rt=1:00:00\n{line}")
        assert found.spec["cluster"] == {"num_gpus": 8, "gpus_per_node": 4, "chips": "h100"}
    with pytest.raises(InputError, match="NHOSTS"):
        imported(f"#$ -l rt_C=2\n{line}")


def test_deepspeeds_file_at_its_place_on_another_machine(tmp_path: Path) -> None:
    """By its name in the script's folder, by two parts of its path above; an optimizer on the host else is told."""
    line = f"deepspeed --num_gpus 8 pretrain_gpt.py {PLAIN} {STEPS} --deepspeed --cpu-optimizer --deepspeed_config "
    zero = '{"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}'
    script = tmp_path / "runs" / "run.sh"
    script.parent.mkdir()
    options = ImportOptions(chip="h100")
    for named, place in (("/home/x/runs/ds.json", "runs/ds.json"), ("/y/cfg/b.json", "cfg/b.json")):
        script.write_text(line + named)
        before = import_source(str(script), options)
        assert any("--cpu-optimizer" in note for note in before.notes)
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(zero)
        after = import_source(str(script), options)
        assert after.spec["training"]["optimizer_offload"] == 1.0
        assert not any("--cpu-optimizer" in note for note in after.notes)
        assert any(note.startswith(f"{named} -> {tmp_path / place}: ZeRO stage 1") for note in after.notes)
    script.write_text(line + f"/{300 * 'x'}.json")
    assert "optimizer_offload" not in import_source(str(script), options).spec["training"]


def test_a_name_with_another_word_is_a_forks_own_and_no_misspelling() -> None:
    found = imported(torchrun(f"{PLAIN} {STEPS} --moe-router-type st --moe-router-num-node-group 8"))
    assert found.unknown == ("--moe-router-type", "--moe-router-num-node-group")
    for wrong in ("--hiden-size", "--tensor-parallel-size", "--global-batchsize", "--tensormodel-parallel-size"):
        with pytest.raises(InputError, match="did you mean"):
            imported(torchrun(f"{PLAIN} {STEPS} {wrong} 2"))


def test_names_that_may_change_the_plan_are_told() -> None:
    found = imported(torchrun(f"{PLAIN} {STEPS} --my-own-optimizer --my-own-tool --my-own-overlap 3"))
    assert found.unknown == ("--my-own-optimizer", "--my-own-tool", "--my-own-overlap")
    warned = [note for note in found.notes if "may change the plan" in note]
    assert [note.split(":")[0] for note in warned] == ["--my-own-optimizer --my-own-tool --my-own-overlap"]


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ("--ds-sequence-parallel-size 4", {"cp": 4, "ulysses": 4, "dp": 2, "cp_gather": False}),
        ("--ds-sequence-parallel-size 1", {"cp": 1, "ulysses": 1, "dp": 8}),
        ("--combined-1f1b --combined-1f1b-recipe ep_a2a", {"expert_overlap": True}),
        ("--combined-1f1b", {"expert_overlap": False}),
        ("--pipeline-model-parallel-size 4 --schedule-method vanilla", {"schedule": "1f1b"}),
        ("--overlapped-distributed-optimizer", {"distributed_optimizer": True}),
    ],
)
def test_names_of_forks_for_degrees(arguments: str, values: dict[str, Any]) -> None:
    """Microsoft's Megatron-DeepSpeed and HYGON's Megatron."""
    found = plan(torchrun(f"{LLAMA} {STEP} {arguments}"))
    assert {key: getattr(found, key) for key in values} == values


def test_a_norm_by_a_flag_of_its_own() -> None:
    assert imported(torchrun(f"{PLAIN} {STEPS} --RMSNorm")).model.norm == "rmsnorm"


@pytest.mark.parametrize(("on", "flash"), [("1", True), ("0", False)])
def test_gaudi_has_some_of_mindspeeds_names_and_a_kernel_of_its_own(on: str, flash: bool) -> None:
    """sft_scripts_qwen3/examples/llama/pretrain_llama.sh of lkk12014402/Pai-Megatron-Patch 72fa91b."""
    kernel = f" --use-fused-rmsnorm --use-fused-sdpa {on} --use-fused-sdpa-with-recompute 0 --transformer-impl local"
    found = imported("export PT_HPU_LAZY_MODE=0\n" + torchrun(LLAMA + STEP + kernel))
    assert found.framework is not None
    assert found.framework.stack == "megatron-core-plain"
    assert found.strategy is not None
    assert found.strategy.flash_attention == flash
    assert found.unknown == ()


def test_names_that_size_something_are_told() -> None:
    """Embeddings for every layer, of a fork of MindSpeed-LLM (tx1103mark/MindSpeed-LLM-Experimental e75ad9c)."""
    found = imported(torchrun(LLAMA + STEP + " --hidden-size-per-layer-input 256 --meki-dim 64 --mtp-steps 2"))
    told = "--hidden-size-per-layer-input --meki-dim --mtp-steps: not known here, and may change the plan"
    assert [note for note in found.notes if note.startswith(told)]
    lora = imported(
        torchrun(LLAMA + STEP + " --lora-r 8 --lora-target-modules linear_qkv --lu-lora-final-layer-index 3")
    )
    assert [note for note in lora.notes if note.startswith("--lu-lora-final-layer-index is not in the plan")]
    with pytest.raises(OutOfScopeError):
        imported(torchrun(LLAMA + STEP).replace("pretrain_gpt.py", "compare_mg_hf_logits.py"))
