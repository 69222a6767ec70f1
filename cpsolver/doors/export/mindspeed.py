"""MindSpeed-LLM: Megatron-Core 0.12.1's arguments with MindSpeed's own, for pretrain_gpt.py on Ascend."""

from __future__ import annotations

from collections.abc import Iterator

from cpsolver.cost.kinds import kind_of_layers
from cpsolver.cost.schedules import V_CHUNKS
from cpsolver.doors.export import mindspeed_model, model_args, parallel_args, training_args
from cpsolver.doors.export.dialect import Flag, flattened
from cpsolver.doors.export.launch import CannotExpress, Launch
from cpsolver.doors.export.megatron import SCRIPT, environment_of, plan_notes
from cpsolver.doors.export.mindspeed_model import DIALECT, GATED
from cpsolver.doors.export.script import nodes_file, train_script
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from models_zoo import Architecture

_CONTEXT = {"p2p": "megatron_cp_algo", "a2a": "ulysses_cp_algo", "a2a+p2p": "hybrid_cp_algo"}
_CONTEXT["allgather"] = "kvallgather_cp_algo"
_SWITCHES: tuple[str, ...] = ("reuse_fp32_parameters", "swap_optimizer", "recompute_activation_function")
_SWITCHES += (
    "recompute_mla_up_proj",
    "mla_swap_core_attn_out",
    "recompute_mlp_layers",
    "moe_zero_memory",
    "moe_dispatcher",
    "gradient_accumulation_fusion",
    "distribute_saved_activations",
    "moe_grouped_gemm",
)
_DATA: tuple[str, ...] = ("--train-iters 10", "--lr 1e-4", '--data-path "${DATA_PATH:?}"')
_DATA += ("--tokenizer-type PretrainedFromHF", '--tokenizer-name-or-path "${TOKENIZER_PATH:?}"')
_FINETUNES = "posttrain_gpt.py"
_COMPRESSED = "pretrain_deepseek4.py"
_WEIGHTS = ("--stage sft", "--finetune", "--is-instruction-dataset", '--load "${LOAD_DIR:?}"')
_REFUSED_BY_V = (("--overlap-grad-reduce",), ("--overlap-param-gather",))
"""What --schedules-method dualpipev refuses, the first, or what needs that."""
_SUMMED_APART = ("--no-gradient-accumulation-fusion",)
_SWAPPED = {"attn_norm": "input_layernorm", "attention": "self_attention", "mlp_norm": "pre_mlp_layernorm"}
"""Modules that wait on the host, by the names of Megatron-Core's layers, with which MindSpeed compares --swap-modules
(core/memory/swap_attention/swap_attention_apply.py)."""


def mindspeed_llm(problem: Problem, s: Strategy) -> Launch:
    """MindSpeed-LLM master of 2026-08; raises CannotExpress."""
    training = problem.spec.training
    training_args.check_switches(training, DIALECT.name, _SWITCHES)
    flags = list(_flags(problem, s))
    environment = {**environment_of(problem, s), "HCCL_CONNECT_TIMEOUT": "3600", "TASK_QUEUE_ENABLE": "2"}
    notes = (*plan_notes(problem, s, DIALECT), *mindspeed_model.model_notes(problem, s))
    if parallel_args.uses_fsdp(s):
        notes += (say("MindSpeed has --use-custom-fsdp alone in mind: it advises against other features beside it"),)
    if _hides_tensor(problem, s) and problem.model.moe is not None:
        told = say(
            "stack {stack} hides {share:.0%} of tensor parallelism's communication; here nothing does: "
            "--use-ascend-mc2 excludes --moe-grouped-gemm",
            stack=problem.stack.name,
            share=problem.stack.tensor_overlap,
        )
        notes += (told,)
    if s.v_shaped and s.distributed_optimizer and problem.stack.gradient_overlap > 0:
        told = say(
            "stack {stack} hides {share:.0%} of the gradients' communication; --schedules-method dualpipev refuses "
            "--overlap-grad-reduce",
            stack=problem.stack.name,
            share=problem.stack.gradient_overlap,
        )
        notes += (told,)
    if s.v_shaped and _passes_beside(problem, s):
        notes += (say("--moe-fb-overlap hides the experts' all-to-alls, which the plan's time counts in full"),)
    pretrains = _COMPRESSED if problem.model.attention.kind == "csa" else SCRIPT
    program, data = (pretrains, _DATA) if problem.lora is None else (_FINETUNES, (*_DATA, *_WEIGHTS))
    script = train_script(problem, s, flags, environment, program, data)
    files = {"train.sh": script, "nodes.txt": nodes_file(problem, s)}
    return Launch(DIALECT.name, flattened(flags), environment, files, "train.sh", notes, "train.sh")


def _flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    training = problem.spec.training
    yield ("--use-mcore-models",)
    yield ("--transformer-impl", "local")
    spec = mindspeed_model.layer_spec(problem.model, s.tp)
    if spec is not None:
        yield ("--spec", f"mindspeed_llm.tasks.models.spec.{spec}", "layer_spec")
    for flag in mindspeed_model.model_flags(problem.model, problem.sequence, spec, s.cp):
        yield ("--num-layers", str(_places(problem.model, s))) if flag[0] == "--num-layers" else flag
    yield ("--padded-vocab-size", str(model_args.padded_vocabulary(problem.model, s.tp)))
    yield from mindspeed_model.expert_flags(problem.model, problem.spec.training.moe_grouped_gemm)
    yield from parallel_args.degree_flags(problem, s)
    yield from context_algorithm(s)
    yield from parallel_args.schedule_flags(problem, s)
    yield from parallel_args.sharding_flags(s, DIALECT)
    yield from _sums(problem, s)
    without = {("--tp-comm-overlap",), _SUMMED_APART, *(_REFUSED_BY_V if s.v_shaped else ())}
    overlaps = (*training_args.gradient_flags(problem, s), *training_args.overlap_flags(problem, s))
    yield from (flag for flag in overlaps if flag not in without)
    if _hides_tensor(problem, s) and problem.model.moe is None:  # refused beside --moe-grouped-gemm
        yield ("--use-ascend-mc2",)
    yield from parallel_args.batch_flags(problem, s)
    yield from training_args.precision_flags(problem, DIALECT)
    if s.flash_attention:
        yield ("--use-flash-attn",)
    if training.fused_kernels:
        yield from _fused_kernels(problem.model)
    yield from _techniques(problem, s)
    yield from _zero_memory(problem, s)
    yield from _adapters(problem)
    yield from parallel_args.recompute_flags(problem, s)
    yield from _layers(problem, s)


def _sums(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Which products add gradients up, as the plan's time counts; none beside custom FSDP (docs/zh/features/
    custom_fsdp.md)."""
    if parallel_args.uses_fsdp(s) or problem.gradient_sum_bytes(of_experts=False):
        yield _SUMMED_APART
    grouped = problem.model.moe is not None and problem.spec.training.moe_grouped_gemm
    if grouped and not problem.gradient_sum_bytes(of_experts=True):
        yield ("--gemm-gradient-accumulation-fusion",)


def _hides_tensor(problem: Problem, s: Strategy) -> bool:
    """The stack counts on tensor parallelism's communication under its GEMMs."""
    return problem.stack.tensor_overlap > 0 and s.sequence_parallel


def context_algorithm(s: Strategy) -> Iterator[Flag]:
    """MindSpeed's names for how context-parallel ranks communicate (features_manager/context_parallel)."""
    if s.cp == 1:
        return
    yield ("--context-parallel-algo", _CONTEXT[s.cp_comm_type])
    if s.cp_comm_type == "a2a+p2p":
        yield ("--ulysses-degree-in-cp", str(s.ulysses))


def _fused_kernels(model: Architecture) -> Iterator[Flag]:
    if model.norm == "rmsnorm":
        yield ("--use-fused-rmsnorm",)
    if model.gated_mlp and model.activation not in GATED:
        yield ("--use-fused-swiglu",)
    if model.position == "rope" and model.attention.kind != "csa":  # whose own kind of positions the first would undo
        yield ("--use-rotary-position-embeddings",)
        yield ("--use-fused-rotary-pos-emb",)


def _techniques(problem: Problem, s: Strategy) -> Iterator[Flag]:
    training = problem.spec.training
    own: dict[str, Flag] = {
        "quantized_states": ("--quant-states", "fp8"),
        "ema_adamw": ("--optimizer-selection", "fused_ema_adamw"),
        "o2_adamw": ("--o2-optimizer",),
    }
    if training.optimizer in own:
        yield own[training.optimizer]
    else:
        yield from training_args.optimizer_flags(training, DIALECT)
    if training.reuse_fp32_parameters:
        yield ("--reuse-fp32-param",)
    if training.swap_optimizer:
        yield ("--swap-optimizer",)
    if training.recompute_activation_function:
        yield ("--recompute-activation-function",)
    if training.recompute_mla_up_proj:
        yield ("--recompute-mla-up-proj",)
        yield from (("--mla-mm-split",), ("--mla-up-proj-tp-overlap",)) if s.tp > 1 else ()
    if training.mla_swap_core_attn_out:
        yield ("--mla-swap-core-attn-out",)
    if training.recompute_mlp_layers:
        yield ("--recompute-num-layers", str(training.recompute_mlp_layers // s.pp))
        yield ("--enable-recompute-layers-per-pp-rank",)
    offloaded = training.activation_offload
    if offloaded and set(offloaded) <= set(_SWAPPED):
        yield ("--swap-attention",)
        yield ("--swap-modules", ",".join(_SWAPPED[name] for name in offloaded))
    else:
        yield from training_args.activation_flags(training, DIALECT)


def _adapters(problem: Problem) -> Iterator[Flag]:
    """Low-rank adapters (MindSpeed-LLM c77308a1, features_manager/finetune/lora.py)."""
    lora = problem.lora
    if lora is None:
        return
    yield ("--lora-r", str(lora.rank))
    yield ("--lora-alpha", str(2 * lora.rank))
    yield ("--lora-target-modules", *lora.targets)


def _zero_memory(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Experts' activations made again, with the overlap that this needs where --moe-fb-overlap is not there anyway."""
    level = problem.spec.training.moe_zero_memory
    if level is None:
        return
    yield ("--moe-zero-memory", level)
    if not (s.v_shaped and _passes_beside(problem, s)):
        yield ("--moe-alltoall-overlap-comm",)


def _passes_beside(problem: Problem, s: Strategy) -> bool:
    """Whether DualPipeV's forwards beside backwards may hide the experts' all-to-alls: --moe-fb-overlap.

    Its conditions (MindSpeed 028de58, features_manager/moe/fb_overlap.py), but those of what is never written here;
    uniform recomputation layer by layer, and no selective one, which its layers pass over (core/transformer/moe/
    moe_feature/fb_overlap/transformer_block.py).
    """
    whole = all(
        kind in ("none", "block") or (kind == "uniform" and number == 1)
        for kind, number in zip(s.recompute, s.recompute_layers, strict=True)
    )
    experts = problem.model.moe is not None and s.ep > 1 and s.etp == 1
    experts &= problem.spec.training.moe_zero_memory != "level1"  # of which it sends the larger part to the host
    return experts and whole and problem.dispatcher == "alltoall" and not problem.spec.training.activation_offload


def _layers(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Uneven stages without interleaving have a list of their own (num_layer_list.py); DualPipeV cuts them evenly, and
    fills shorter chunks with layers that do nothing."""
    if s.v_shaped:
        yield ("--schedules-method", "dualpipev")
        yield ("--dualpipev-dw-detach",)
        if noops := _noop_layers(problem.model, s):
            yield ("--noop-layers", ",".join(map(str, noops)))
        if _passes_beside(problem, s):
            yield ("--moe-fb-overlap",)
    elif s.vpp == 1 and not parallel_args.is_plain(s):
        yield ("--num-layer-list", ",".join(map(str, s.layers)))
    else:
        yield from parallel_args.layer_flags(problem, s, DIALECT)


def _places(model: Architecture, s: Strategy) -> int:
    """Layers that --num-layers counts, those that do nothing among them."""
    return model.layers + (len(_noop_layers(model, s)) if s.v_shaped else 0)


def _noop_layers(model: Architecture, s: Strategy) -> tuple[int, ...]:
    """Places, counted from 0 through all chunks of a V, of the layers that fill its shorter chunks up at their ends.

    Options that say which layers are of another kind count these places too: raises CannotExpress where that matters.
    """
    chunks = (*(-(-layers // V_CHUNKS) for layers in s.layers), *(layers // V_CHUNKS for layers in reversed(s.layers)))
    longest = max(chunks)
    noops = tuple(index * longest + place for index, layers in enumerate(chunks) for place in range(layers, longest))
    kinds = kind_of_layers(model)
    if noops and len({*kinds[noops[0] :]}) > 1:
        message = say(
            "--noop-layers {noops} stands before layers of several kinds, which are told by their numbers",
            noops=noops[0],
        )
        raise CannotExpress((message,))
    return noops
