"""MindSpeed-LLM: Megatron-Core 0.12.1's arguments with MindSpeed's own, for pretrain_gpt.py on Ascend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cpsolver.export.base import CannotExpress, Launch
from cpsolver.export.dialect import CORE_0_12, Flag, flattened
from cpsolver.export.layout import is_accounted, is_even, is_first_last
from cpsolver.export.megatron import SCRIPT, environment_of, plan_notes
from cpsolver.export.model_args import expert_flags, model_flags, model_notes, padded_vocabulary, shared_width
from cpsolver.export.parallel_args import (
    batch_flags,
    check_schedule,
    degree_flags,
    layer_flags,
    recompute_flags,
    schedule_flags,
    sharding_flags,
    uses_fsdp,
)
from cpsolver.export.script import nodes_file, train_script
from cpsolver.export.training_args import (
    activation_flags,
    check_switches,
    gradient_flags,
    optimizer_flags,
    overlap_flags,
    precision_flags,
)
from cpsolver.problem import Problem
from cpsolver.strategy import Strategy
from models_zoo import Architecture

DIALECT = replace(
    CORE_0_12,
    name="mindspeed-llm",
    source="MindSpeed-LLM c77308a1 on core_v0.12.1",
    layout=True,
    layout_mtp=True,
    layers_per_chunk=True,
)
_CONTEXT = {"p2p": "megatron_cp_algo", "a2a": "ulysses_cp_algo", "a2a+p2p": "hybrid_cp_algo"}
_CONTEXT["allgather"] = "kvallgather_cp_algo"
_SWITCHES = ("reuse_fp32_parameters", "swap_optimizer")
_DATA = (
    "--train-iters 10",
    "--lr 1e-4",
    '--data-path "${DATA_PATH:?}"',
    "--tokenizer-type PretrainedFromHF",
    '--tokenizer-name-or-path "${TOKENIZER_PATH:?}"',
)


def mindspeed_llm(problem: Problem, s: Strategy) -> Launch:
    """MindSpeed-LLM master of 2026-08; raises CannotExpress."""
    training = problem.spec.training
    check_schedule(s, DIALECT.name)
    check_switches(training, DIALECT.name, _SWITCHES)
    flags = list(_flags(problem, s))
    environment = {**environment_of(s), "HCCL_CONNECT_TIMEOUT": "3600", "TASK_QUEUE_ENABLE": "2"}
    notes = (
        *plan_notes(problem, s, DIALECT),
        *(note for note in model_notes(problem.model, problem.sequence, DIALECT) if "alibi positions" not in note),
    )
    if uses_fsdp(s):
        notes += ("MindSpeed has --use-custom-fsdp alone in mind: it advises against other features beside it",)
    script = train_script(problem, s, flags, environment, SCRIPT, _DATA)
    files = {"train.sh": script, "nodes.txt": nodes_file(problem, s)}
    return Launch(DIALECT.name, flattened(flags), environment, files, "train.sh", notes)


def _flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    training = problem.spec.training
    yield ("--use-mcore-models",)
    yield ("--transformer-impl", "local")
    yield from _model(problem.model, problem.sequence)
    yield ("--padded-vocab-size", str(padded_vocabulary(problem.model, s.tp)))
    yield from _experts(problem.model)
    yield from degree_flags(problem, s)
    yield from context_algorithm(s)
    yield from schedule_flags(problem, s)
    yield from sharding_flags(s, DIALECT)
    if uses_fsdp(s):
        yield ("--no-gradient-accumulation-fusion",)  # docs/zh/features/custom_fsdp.md
    yield from (flag for flag in gradient_flags(problem, s))
    yield from (flag for flag in overlap_flags(problem, s, DIALECT) if flag != ("--tp-comm-overlap",))
    if problem.stack.tensor_overlap > 0 and s.sequence_parallel:
        yield ("--use-ascend-mc2",)
    yield from batch_flags(problem, s)
    yield from precision_flags(training)
    if s.flash_attention:
        yield ("--use-flash-attn",)
    if training.fused_kernels:
        yield from _fused_kernels(problem.model)
    yield from _techniques(problem)
    yield from recompute_flags(s)
    yield from _layers(problem, s)


def _model(model: Architecture, sequence: int) -> Iterator[Flag]:
    for flag in model_flags(model, sequence, DIALECT):
        if flag[0] == "--position-embedding-type" and model.position == "alibi":
            yield (flag[0], "alibi")
        else:
            yield flag


def _experts(model: Architecture) -> Iterator[Flag]:
    """MindSpeed-LLM counts dense layers, then every n-th layer; and shared experts, of the routed ones' width."""
    moe = model.moe
    if moe is None:
        return
    if moe.offset % moe.freq != moe.first_dense % moe.freq:
        layers = f"every {moe.freq} layers from layer {moe.offset}"
        raise CannotExpress((f"experts stand in {layers}: --moe-layer-freq counts from the first layer with experts",))
    for flag in expert_flags(model, DIALECT):
        if flag[0] == "--moe-layer-freq":
            yield ("--first-k-dense-replace", str(moe.first_dense))
            yield ("--moe-layer-freq", str(moe.freq))
        elif flag[0] == "--moe-shared-expert-intermediate-size" and not shared_width(model) % moe.expert_ffn:
            yield ("--n-shared-experts", str(shared_width(model) // moe.expert_ffn))
            if moe.shared_gate:
                yield ("--shared-expert-gate",)
        else:
            yield flag


def context_algorithm(s: Strategy) -> Iterator[Flag]:
    """MindSpeed's names for how context-parallel ranks exchange (features_manager/context_parallel)."""
    if s.cp == 1:
        return
    yield ("--context-parallel-algo", _CONTEXT[s.cp_comm_type])
    if s.cp_comm_type == "a2a+p2p":
        yield ("--ulysses-degree-in-cp", str(s.ulysses))


def _fused_kernels(model: Architecture) -> Iterator[Flag]:
    if model.norm == "rmsnorm":
        yield ("--use-fused-rmsnorm",)
    if model.gated_mlp:
        yield ("--use-fused-swiglu",)
    if model.position == "rope":
        yield ("--use-rotary-position-embeddings",)
        yield ("--use-fused-rotary-pos-emb",)


def _techniques(problem: Problem) -> Iterator[Flag]:
    training = problem.spec.training
    own: dict[str, Flag] = {
        "quantized_states": ("--quant-states", "fp8"),
        "ema_adamw": ("--optimizer-selection", "fused_ema_adamw"),
    }
    if training.optimizer in own:
        yield own[training.optimizer]
    else:
        yield from optimizer_flags(training, DIALECT)
    if training.reuse_fp32_parameters:
        yield ("--reuse-fp32-param",)
    if training.swap_optimizer:
        yield ("--swap-optimizer",)
    if training.activation_offload == ("attention",):
        yield ("--swap-attention",)
    else:
        yield from activation_flags(training, DIALECT)


def _layers(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Uneven stages without interleaving have a list of their own (num_layer_list.py)."""
    plain = is_even(s) or is_accounted(s) or is_first_last(s)
    if s.vpp == 1 and not plain:
        yield ("--num-layer-list", ",".join(map(str, s.layers)))
    else:
        yield from layer_flags(problem, s, DIALECT)
