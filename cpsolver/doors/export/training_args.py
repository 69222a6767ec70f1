"""Precision, techniques (docs/techniques.md) and the stack's overlaps in Megatron-LM's options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cpsolver.doors.export.dialect import Dialect, Flag
from cpsolver.doors.export.launch import CannotExpress, refuse
from cpsolver.doors.export.parallel_args import uses_fsdp
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.profiles.switches import Fp8Recipe
from cpsolver.profiles.techniques import techniques
from cpsolver.spec.training import Training

_BF16_STATES = (("--exp-avg-dtype", "bf16"), ("--exp-avg-sq-dtype", "bf16"))
_FP8_STATES = (("--exp-avg-dtype", "fp8"), ("--exp-avg-sq-dtype", "fp8"))
_BF16_GRADIENTS = ("--main-grads-dtype", "bf16")
PRECISION_AWARE = ("--use-precision-aware-optimizer",)


RECIPES: Mapping[Fp8Recipe, str] = {
    "delayed": "delayed",
    "current": "tensorwise",
    "blockwise": "blockwise",
    "mx": "mxfp8",
}
"""What --fp8-recipe calls each: its default is the first."""


def precision_flags(problem: Problem, dialect: Dialect) -> Iterator[Flag]:
    """Types of weights and GEMMs; dropout. Raises CannotExpress for a recipe that the dialect does not have."""
    training = problem.spec.training
    yield ("--fp16",) if training.precision == "fp16" else ("--bf16",)
    if problem.recipe == "nvfp4":
        yield ("--fp4-format", "e2m1")
        yield ("--fp4-recipe", "nvfp4")
        if problem.narrow_weights:
            yield ("--fp4-param-gather",)
    elif problem.recipe is not None:
        yield from _fp8_flags(problem, problem.recipe, dialect)
    if not training.dropout:
        yield ("--attention-dropout", "0.0")
        yield ("--hidden-dropout", "0.0")


def _fp8_flags(problem: Problem, recipe: Fp8Recipe, dialect: Dialect) -> Iterator[Flag]:
    if recipe not in dialect.fp8_recipes:
        allowed = ", ".join(dialect.fp8_recipes)
        refuse(
            [
                say(
                    "training.fp8_recipe is {recipe}: {name} has {allowed}",
                    recipe=recipe,
                    name=dialect.name,
                    allowed=allowed,
                )
            ]
        )
    yield ("--fp8-format", "e4m3" if recipe in ("blockwise", "mx") else "hybrid")
    if recipe != "delayed":
        yield ("--fp8-recipe", RECIPES[recipe])
    if problem.narrow_weights:
        yield ("--fp8-param-gather",)
        if recipe == "mx":  # else 16-bit weights stay beside them to be gathered
            if not dialect.mx_weights:
                refuse(
                    [
                        say(
                            "{name} holds no MXFP8 weights: training.fp8_parameter_gather may be false",
                            name=dialect.name,
                        )
                    ]
                )
            yield ("--reuse-grad-buf-for-mxfp8-param-ag",)


def attention_backend(problem: Problem, s: Strategy) -> str:
    """Megatron-Core's name of the attention kernel."""
    latent = problem.model.attention.kind == "mla"
    return "unfused" if not s.flash_attention else "auto" if latent else "flash"


def kernel_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """The attention kernel, and fusions where they are off."""
    yield ("--attention-backend", attention_backend(problem, s))
    if not problem.spec.training.fused_kernels:
        for name in ("bias-swiglu", "bias-gelu", "bias-dropout", "rope"):
            yield (f"--no-{name}-fusion",)


def optimizer_flags(training: Training, dialect: Dialect) -> Iterator[Flag]:
    """The optimizer and where its states are. Raises CannotExpress for what the dialect has no flag for."""
    choices: dict[str, tuple[Flag, ...]] = {
        "adam": (("--optimizer", "adam"),),
        "precision_aware": (("--optimizer", "adam"), PRECISION_AWARE),
        "precision_aware_fp8": (("--optimizer", "adam"), PRECISION_AWARE, *_FP8_STATES, _BF16_GRADIENTS),
    }
    if dialect.bf16_moments:
        states: tuple[Flag, ...] = (("--optimizer", "adam"), PRECISION_AWARE, *_BF16_STATES)
        choices["precision_aware_bf16"] = states
        choices["precision_aware_bf16_grads"] = (*states, _BF16_GRADIENTS)
    if dialect.lion:
        choices["lion"] = (("--optimizer", "lion"),)
    if dialect.matrices:
        steps = ("--muon-num-ns-steps", f"{techniques().muon_steps:g}")
        choices["muon"] = (("--optimizer", "muon"), ("--muon-tp-mode", training.muon_tp_mode), steps)
        choices["soap"] = (("--optimizer", "soap"),)
    if training.optimizer not in choices:
        allowed = ", ".join(choices)
        refuse(
            [
                say(
                    "training.optimizer is {optimizer}: {name} has {allowed}",
                    optimizer=training.optimizer,
                    name=dialect.name,
                    allowed=allowed,
                )
            ]
        )
    yield from choices[training.optimizer]
    if training.optimizer_offload:
        yield ("--optimizer-cpu-offload",)
        yield ("--optimizer-offload-fraction", f"{training.optimizer_offload:g}")
        if PRECISION_AWARE not in choices[training.optimizer]:
            yield PRECISION_AWARE


def check_matrices(problem: Problem, s: Strategy) -> None:
    """Raises CannotExpress where replicas cannot share out whole matrices (core/optimizer/__init__.py asserts that
    experts have no weights but these)."""
    biased = problem.model.moe is not None and problem.model.bias_mlp
    if problem.spec.training.whole_matrices and s.distributed_optimizer and biased:
        told = say(
            "{optimizer}'s distributed optimizer has no place for the biases of {model}'s experts: "
            "distributed_optimizer must be false",
            optimizer=problem.spec.training.optimizer,
            model=problem.model.name,
        )
        raise CannotExpress((told,))


def activation_flags(training: Training, dialect: Dialect) -> Iterator[Flag]:
    """Activations that wait on the host. Raises CannotExpress where the dialect has no flag for them."""
    if training.offload_layers:
        yield ("--cpu-offloading-num-layers", str(training.offload_layers))
    modules = training.activation_offload
    if not modules:
        return
    if not dialect.activation_offload:
        refuse(
            [
                say(
                    "training.activation_offload is {modules}: {name} has no such flag",
                    modules=", ".join(modules),
                    name=dialect.name,
                )
            ]
        )
    if "attention" in modules:
        raise CannotExpress((say("training.activation_offload is attention: Megatron-LM offloads single modules"),))
    yield ("--fine-grained-activation-offloading",)
    yield ("--offload-modules", *modules)


def check_switches(training: Training, framework: str, has: tuple[str, ...] = ()) -> None:
    """Raises CannotExpress for switches of other frameworks; `has`: those that this one knows."""
    on = {
        "release_fp32_gradients": training.release_fp32_gradients,
        "reuse_fp32_parameters": training.reuse_fp32_parameters,
        "parameter_offload": training.parameter_offload,
        "swap_optimizer": training.swap_optimizer,
        "recompute_activation_function": training.recompute_activation_function,
        "recompute_mla_up_proj": training.recompute_mla_up_proj,
        "mla_swap_core_attn_out": training.mla_swap_core_attn_out,
        "recompute_mlp_layers": training.recompute_mlp_layers > 0,
        "distribute_saved_activations": training.distribute_saved_activations,
        "cpu_checkpointing": training.cpu_checkpointing,
        "moe_zero_memory": training.moe_zero_memory is not None,
        "triangle_attention": training.triangle_attention,
        "offload_layers": training.offload_layers > 0,
        "fused_gate_up": not training.fused_gate_up,
        "moe_grouped_gemm": not training.moe_grouped_gemm,
        "fp8_attention": bool(training.fp8_attention),
        "cuda_graph": training.cuda_graph is not None,
        "moe_dispatcher": training.moe_dispatcher is not None,
        "gradient_accumulation_fusion": training.gradient_accumulation_fusion is not None,
    }
    refuse(
        say(
            "training.{name} is {value}: {framework} has no flag for that",
            name=name,
            value=str(getattr(training, name)).lower(),
            framework=framework,
        )
        for name, used in on.items()
        if used and name not in has
    )


def gradient_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Sums of gradients; data-parallel communication: its type, and overlaps that the stack's profile counts on."""
    stack, replicas = problem.stack, max(mesh.dp * mesh.cp for mesh, _ in s.meshes)
    if problem.spec.training.gradient_accumulation_fusion == "none":
        yield ("--no-gradient-accumulation-fusion",)
    if stack.gradient_reduce_bytes == 2 and problem.spec.training.precision != "fp16":
        yield ("--grad-reduce-in-bf16",)
    hidden = stack.sharding_overlap if uses_fsdp(s) else stack.gradient_overlap
    gathered = stack.sharding_overlap if uses_fsdp(s) else stack.parameter_overlap
    if replicas > 1 and hidden > 0:
        yield ("--overlap-grad-reduce",)
        if s.distributed_optimizer and gathered > 0:
            yield ("--overlap-param-gather",)


def overlap_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """Overlaps inside layers and along the pipeline: the plan's, and those that the stack's profile counts on."""
    stack = problem.stack
    if stack.tensor_overlap > 0 and s.sequence_parallel:
        yield ("--tp-comm-overlap",)
    if s.vpp > 1 and s.pp > 2 and stack.pipeline_overlap_interleaved == 0:
        yield ("--no-overlap-p2p-communication",)
    if problem.model.moe is None:
        return
    if problem.copies_once and s.ep > 1:
        yield ("--moe-token-dispatcher-type", "flex")
        hybrid = problem.spec.training.moe_dispatcher == "hybridep"
        yield ("--moe-flex-dispatcher-backend", "hybridep") if hybrid else ("--moe-enable-deepep",)
    else:
        sent = any(m.ep * m.etp > 1 for m, _ in s.meshes) and not problem.gathers_tokens
        yield ("--moe-token-dispatcher-type", "alltoall" if sent else "allgather")
    capacity = problem.spec.training.expert_capacity_factor
    if capacity is not None:
        yield ("--moe-expert-capacity-factor", f"{capacity:g}")
    if s.expert_overlap:
        yield ("--overlap-moe-expert-parallel-comm",)


def graph_flags(problem: Problem, s: Strategy) -> Iterator[Flag]:
    """What CUDA graphs replay. (Later versions take these names too, and say what they are called now.)

    The kernels that compute experts' activation want gate and up in turn, 32 rows each (Megatron-Bridge 067f987,
    perf_recipes/qwen/common.py).
    """
    scope = problem.spec.training.cuda_graph
    if scope == "full":
        yield ("--cuda-graph-impl", "local")
        yield ("--cuda-graph-scope", "full_iteration")
        yield ("--no-check-for-nan-in-loss-and-grad",)
        if problem.model.moe is not None and problem.fused_experts and s.etp == 1:
            yield ("--use-transformer-engine-op-fuser",)
            yield ("--moe-mlp-glu-interleave-size", "32")
    elif scope == "te":
        yield ("--cuda-graph-impl", "transformer_engine")
        routed = ("moe_router", "moe_preprocess") if problem.model.moe else ("mlp",)
        yield ("--cuda-graph-scope", "attn", *routed)
    if scope in ("full", "te"):
        yield ("--te-rng-tracker",)


def overlap_notes(problem: Problem, s: Strategy) -> Iterator[str]:
    """Overlaps that the prediction counts on and that this framework or plan cannot have."""
    stack = problem.stack
    if s.vpp > 1 and s.pp == 2 and stack.pipeline_overlap_interleaved == 0:
        yield say(
            "stack {name} hides no pipeline transfers; with 2 stages Megatron-LM interleaves only if it does",
            name=stack.name,
        )
