"""What the training's switches change of the activations that a layer keeps: 8 bits, the host, functions made again."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np

from cpsolver.cost import gemms
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.compute import Traffic, stream
from cpsolver.cost.kinds import LayerKind, over_parts, problem_of
from cpsolver.cost.memory import LayerBytes, layer_bytes
from cpsolver.cost.modules import projects_up, up_projected_bytes, up_projection_seconds
from cpsolver.cost.shard import Candidates, Floats, Shard
from cpsolver.cost.zero_memory import dropped, weighted_activations
from cpsolver.plans.strategy import MODULES
from cpsolver.problem.problem import Problem
from cpsolver.profiles.switches import OffloadModule
from cpsolver.profiles.techniques import techniques
from hw_specs import Chip

ATTENTION: tuple[OffloadModule, ...] = ("qkv_linear", "core_attn", "attn_proj")
"""What MindSpeed's swap-attention sends to the host: every tensor kept inside the attention block."""
Inside = dict[str, Floats]
"""Bytes by the name of the module (of MODULES) among whose tensors they are."""


def on_device(problem: Problem, shard: Shard, kind: LayerKind, layer: LayerBytes) -> LayerBytes:
    """What stays on the device of what a layer keeps for the backward pass.

    Some layers' tensors are there while they travel: those count as buffers. What selective recomputation of a module
    drops in any case is not saved a second time.
    """
    return _away(problem, _recomputed_blocks(problem, shard, kind, _at_work(problem, shard, kind, layer)))


def _recomputed_blocks(problem: Problem, shard: Shard, kind: LayerKind, layer: LayerBytes) -> LayerBytes:
    """The mean of a stage's layers where the feed-forward blocks of the first ones are recomputed beside attention that
    waits on the host; what goes into a block stays, a norm's result too.

    One block is there as a whole while it is recomputed. Interleaved, the first chunks have more of these layers, and
    of microbatches in flight: memory is rounded up. MindSpeed 028de58, core/memory/swap_attention, and
    adaptive_recomputing/adaptive_recompute_apply.py.
    """
    share = recomputed_share(problem)
    if not (share and kind.feed_forward):
        return layer
    at = MODULES.index("moe" if kind.experts else "mlp")
    norm = problem.element_bytes * problem.model.hidden * shard.tokens(problem.sequence) / shard.sequence_split
    block = layer.freed[at] - norm * (problem.spec.training.fused_kernels and not kind.experts)
    freed = layer.freed.copy()
    freed[at] -= share * block
    return replace(layer, full=layer.full - share * block, freed=freed, buffer=layer.buffer + block)


def recomputed_share(problem: Problem) -> float:
    """Of the model's layers, those whose feed-forward blocks are recomputed beside attention that waits on the host."""
    return min(1.0, problem.spec.training.recompute_mlp_layers / problem.model.layers)


def _away(problem: Problem, layer: LayerBytes) -> LayerBytes:
    """The mean of a model's layers where some wait on the host (all layers are on one stage: rule `layer_offload`).

    One layer's tensors are on their way while another, which stays, is at work.
    """
    layers = problem.spec.training.offload_layers
    if not layers:
        return layer
    left = 1.0 - _share_away(problem)
    return replace(
        layer,
        full=left * layer.full,
        freed=left * layer.freed,
        checkpoint=left * layer.checkpoint,
        buffer=layer.buffer + (techniques().offload_layers_held - 1) * layer.full,
    )


def _share_away(problem: Problem) -> float:
    """Of the model's layers, those whose activations wait on the host."""
    return min(1.0, problem.spec.training.offload_layers / problem.model.layers)


def _at_work(problem: Problem, shard: Shard, kind: LayerKind, layer: LayerBytes) -> LayerBytes:
    """What a layer that stays keeps, in 8 bits, without what its modules send to the host and what is made again."""
    training = problem.spec.training
    away = training.activation_offload or training.mla_swap_core_attn_out
    if not (problem.narrow_activations or away or training.recomputes_inside):
        return layer
    each = [[count * of for of in _saved(problem, shard, part)] for part, count in kind.parts]
    saved, inside, held = (reduce(add, of) for of in zip(*each, strict=True))
    return replace(
        layer,
        full=np.maximum(layer.full - saved, layer.checkpoint),
        freed=layer.freed - inside,
        buffer=layer.buffer + held,
    )


def _saved(problem: Problem, shard: Shard, kind: LayerKind) -> tuple[Floats, Floats, Floats]:
    """Bytes that switches save of what a layer keeps, those of them that each module drops anyway, and those that are
    there all the same while a layer is at work."""
    swapped = swapped_results(problem, shard, kind)
    parts = [
        offloaded(problem, shard, kind),
        recomputed_functions(problem, shard, kind),
        recomputed_projections(problem, shard, kind),
        narrowed(problem, shard, kind),
        (swapped, {}),
    ]
    away, again = parts[0][0], parts[1][0] + parts[2][0]
    zero = dropped(problem, shard, kind, _input_bytes(problem))
    parts += [(zero.all, zero.inside)] if zero else []
    saved = np.asarray(sum(each for each, _ in parts))
    inside = np.stack([sum((less.get(name, 0.0) for _, less in parts), 0.0 * saved) for name in MODULES])
    held = techniques().offload_layers_held * away + techniques().function_results_held * again
    held = held + techniques().swapped_results_held * swapped
    return saved, inside, held + zero.held if zero else held


def recomputed_functions(problem: Problem, shard: Shard, kind: LayerKind) -> tuple[Floats, Inside]:
    """Bytes a layer and microbatch of the activation functions' results where these are dropped after the product that
    reads them and made again before its backward, and those that a module drops anyway.

    MindSpeed 028de58, core/memory/recompute/activation (dense blocks and shared experts) and
    core/transformer/moe/moe_feature/gmm/experts.py (routed experts).
    """
    none = np.zeros(len(shard.tp))
    if not (problem.spec.training.recompute_activation_function and kind.feed_forward):
        return none, {}
    each = _input_bytes(problem) * shard.tokens(problem.sequence) / shard.tp
    if not kind.experts:
        return each * problem.model.ffn, {"mlp": each * problem.model.ffn}
    routed, shared = (each * width for width in _widths(problem, kind))
    routed = routed + weighted_activations(problem, shard)
    return routed + shared, {"moe": routed + shared, "moe_act": routed, "shared_experts": shared}


def recomputed_projections(problem: Problem, shard: Shard, kind: LayerKind) -> tuple[Floats, Inside]:
    """Bytes a layer and microbatch of what latent attention's core takes, where it is dropped after that and made again
    from its low ranks before backward (MindSpeed-LLM c77308a1, tasks/models/transformer/multi_latent_attention.py)."""
    none = np.zeros(len(shard.tp))
    if not (problem.spec.training.recompute_mla_up_proj and kind.attends and projects_up(problem.model)):
        return none, {}
    # Attention without a flash kernel keeps copies of its own: nothing is counted as saved there.
    saved = np.where(shard.flash_attention, up_projected_bytes(problem, shard), 0.0)
    return saved, {"mla_up_proj": saved}


def left_in_last_chunk(problem: Problem, rows: Candidates, kind: LayerKind) -> Floats:
    """Bytes a layer and microbatch that `recomputed_projections` counts as saved, and the last chunk of a V keeps.

    MindSpeed-LLM c77308a1, tasks/models/transformer/mla_up_proj_overlap_tp_comm.py, should_recompute_mla_up_proj: under
    DualPipeV not in the chunk that holds the head.
    """
    kept = over_parts(kind, lambda part: recomputed_projections(problem, rows.shard, part)[0])
    return np.where(rows.v_shaped, kept, 0.0)


def swapped_results(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """Bytes a layer and microbatch of what latent attention's core gives, where that waits on the host: the input of
    the product behind it (MindSpeed-LLM c77308a1, tasks/models/transformer/multi_latent_attention.py)."""
    if not (problem.spec.training.mla_swap_core_attn_out and kind.attends and projects_up(problem.model)):
        return np.zeros(len(shard.tp))
    values = gemms.core_widths(problem.model)[1]
    return problem.element_bytes * shard.tokens(problem.sequence) * problem.model.heads / shard.tp * values


def recomputed_projection_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> Floats:
    """Seconds a layer and microbatch in which those projections run again before backward."""
    if not (problem.spec.training.recompute_mla_up_proj and kind.attends and projects_up(problem.model)):
        return np.zeros(len(shard.tp))
    return up_projection_seconds(problem, chip, shard)


def recomputed_inside_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> Floats:
    """Seconds a layer and microbatch of all that is dropped inside it and made again before its backward pass."""
    functions = (1.0 - recomputed_share(problem)) * recomputed_function_seconds(problem, chip, shard, kind)
    return functions + recomputed_projection_seconds(problem, chip, shard, kind)


def recomputed_function_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> Floats:
    """Seconds a layer and microbatch in which activation functions run again before backward, reading and writing."""
    if not (problem.spec.training.recompute_activation_function and kind.feed_forward):
        return np.zeros(len(shard.tp))
    model, tokens = problem.model, shard.tokens(problem.sequence)
    width = sum(_widths(problem, kind)) if kind.experts else model.ffn
    elements = (3 if model.gated_mlp else 2) * width / shard.tp * tokens
    return stream(problem, ChipSpeeds(problem, chip), Traffic("activation function", elements, 1))


def narrowed(problem: Problem, shard: Shard, kind: LayerKind) -> tuple[Floats, Inside]:
    """Bytes a layer and microbatch that inputs of its GEMMs in 8 or 4 bits save, and those that a module drops anyway.

    Norms' outputs, activations' outputs and the experts' inputs are those inputs. 16 bits stay: norms' inputs, queries,
    keys, values, attention's output, the activation's input unless the stack has it in 8, what the router reads
    (TransformerEngine d0067d0).
    """
    none = np.zeros(len(shard.tp))
    if not problem.narrow_activations:
        return none, {}
    saved = (problem.element_bytes - _input_bytes(problem)) * shard.tokens(problem.sequence)
    norm = saved * problem.model.hidden / shard.sequence_split
    if problem.lora is not None and not kind.experts:  # frozen layers keep no inputs, and adapters theirs in 16 bits
        gates = 2 if problem.model.gated_mlp else 1
        inside = problem.stack.fp8_activation_inputs * gates * saved * problem.model.ffn / shard.tp * kind.dense
        return inside, {"mlp": inside}
    if not kind.feed_forward:
        return norm, {"layernorm": norm * _separate_norm(problem)}
    routed, shared = (saved * width / shard.tp for width in _widths(problem, kind))
    fed = 1 + problem.stack.fp8_activation_inputs * (2 if problem.model.gated_mlp else 1)
    if kind.experts:
        inputs = saved * _expert_inputs(problem, shard, kind)
        inside = {"moe": inputs + fed * (routed + shared), "moe_act": routed, "shared_experts": fed * shared}
        first = norm * (kind.mixer != "none") * (problem.lora is None)
        return first + inside["moe"], {**inside, "layernorm": first * _separate_norm(problem)}
    block, fused = fed * saved * problem.model.ffn / shard.tp, problem.spec.training.fused_kernels
    norms = norm * np.minimum(_separate_norm(problem) + (not fused), kind.branches)
    return kind.branches * norm + block, {"mlp": block + norm * fused, "layernorm": norms}


def offloaded(problem: Problem, shard: Shard, kind: LayerKind) -> tuple[Floats, Inside]:
    """Bytes a layer and microbatch that go to the host, and those of them that a module drops anyway.

    The inputs of the modules that the spec names (Megatron-LM d98e8a6,
    docs/user-guide/features/fine_grained_activation_offloading.md).
    """
    problem = problem_of(problem, kind)
    model, tokens = problem.model, shard.tokens(problem.sequence)
    heads, (keys, values) = model.heads / shard.tp.astype(np.float64), gemms.core_widths(model)
    latent = model.attention.kind == "mla"
    kv_heads = heads if latent else np.maximum(1.0, model.kv_heads / shard.tp)
    hidden = model.hidden / shard.sequence_split.astype(np.float64)
    narrow = _input_bytes(problem)
    gates = 2 if model.gated_mlp else 1
    sent: dict[OffloadModule, Floats] = {
        "attn_norm": problem.element_bytes * hidden,
        "qkv_linear": narrow * hidden,
        "core_attn": problem.element_bytes * (heads * keys + kv_heads * (keys + values)),
        "attn_proj": problem.element_bytes * heads * values,
        "mlp_norm": problem.element_bytes * hidden,
        "expert_fc1": narrow * _expert_inputs(problem, shard, kind),
        "moe_act": problem.element_bytes * gates * _widths(problem, kind)[0] / shard.tp,
    }
    named = set(problem.spec.training.activation_offload)
    named |= set(ATTENTION) if "attention" in named else set()
    named -= set() if kind.attends else {"attn_norm", *ATTENTION}
    named -= set() if kind.feed_forward else {"mlp_norm"}
    sizes = {name: tokens * size * (name in named) for name, size in sent.items()}
    inside = {
        "layernorm": sizes["qkv_linear"] * _separate_norm(problem),
        "mla_up_proj": sizes["core_attn"] * latent,
        "moe": sizes["expert_fc1"] + sizes["moe_act"],
    }
    return np.asarray(sum(sizes.values())), inside


def offload_seconds(
    problem: Problem, chip: Chip, shard: Shard, kind: LayerKind, passes: tuple[Floats, Floats]
) -> Floats:
    """Seconds a layer and microbatch that the trips to the host and back take longer than its forward and backward.

    Each direction has a stream of its own, and the link serves both at once. Where whole layers go, the trips of some
    are spread over the passes of all (Transformer Engine, pytorch/cpu_offload.py, layer_window_map).
    """
    training = problem.spec.training
    if not (training.activation_offload or training.offload_layers or training.mla_swap_core_attn_out):
        return np.zeros(len(shard.tp))
    sent = over_parts(kind, lambda part: offloaded(problem, shard, part)[0] + swapped_results(problem, shard, part))
    if training.offload_layers:
        sent = _share_away(problem) * _at_work(problem, shard, kind, layer_bytes(problem, shard, kind)).full
    trip = sent / chip.host_bandwidth_bytes_s
    return np.asarray(sum(np.maximum(0.0, trip - seconds) for seconds in passes))


def _input_bytes(problem: Problem) -> float:
    """Of an element of a GEMM's input."""
    recipe = problem.recipe
    return techniques().recipes[recipe].value_bytes if recipe and problem.narrow_activations else problem.element_bytes


def _separate_norm(problem: Problem) -> bool:
    """Attention's norm is a module of its own, not part of the GEMM after it (see modules.py)."""
    return problem.model.attention.kind == "mla" or not problem.spec.training.fused_kernels


def _widths(problem: Problem, kind: LayerKind) -> tuple[float, float]:
    """Elements a token of the activations of routed and of shared experts, before tensor parallelism."""
    moe = problem.model.moe
    if not kind.experts or moe is None:
        return 0.0, 0.0
    return gemms.routed_load(problem) * moe.computed * moe.expert_ffn, float(moe.shared_width)


def _expert_inputs(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """Elements for each of a device's tokens that its experts' ranks have gathered, in the experts' order."""
    moe = problem.model.moe
    if not kind.experts or moe is None:
        return np.zeros(len(shard.tp))
    return np.asarray(gemms.routed_load(problem) * moe.computed * problem.model.expert_width * shard.etp / shard.tp)
