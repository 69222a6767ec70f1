"""What selective recomputation of a set of modules recomputes in a layer, and what it does not keep.

Of two sorts (Megatron-LM d98e8a6, core/tensor_parallel/random.py): core_attn, mlp, moe and shared_experts keep what
goes in and what comes out, and recompute all between, with its communication. layernorm, moe_act and mla_up_proj keep
what goes in, and recompute their output just before it is needed. operators (torchtitan b5bcd76c,
distributed/activation_checkpoint.py) keeps what goes into the layer, what attention's core and what every other GEMM
gives, and recomputes the rest.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, product

import numpy as np

from cpsolver.cost import comm, compute, gemms
from cpsolver.cost.chip_speeds import ChipSpeeds
from cpsolver.cost.comm import LayerComm
from cpsolver.cost.compute import LayerSeconds, Traffic
from cpsolver.cost.kinds import LayerKind, layer_kinds, norms, problem_of
from cpsolver.cost.shard import NOT_COMPUTED, OF_ATTENTION, OF_EXPERTS, Bools, Floats, Shard
from cpsolver.plans.strategy import CORE, MODULES, NAMED_MODULES, OPERATORS, canonical_modules
from cpsolver.problem.problem import Problem
from cpsolver.spec.search import ALL_CHIPS
from hw_specs import Chip
from models_zoo import Architecture

Modules = tuple[str, ...]
"""A set of modules, as `canonical_modules` writes it."""


def applicable(problem: Problem) -> Modules:
    """The modules that the model's layers have and the launcher knows."""
    known = NAMED_MODULES if problem.launcher is None else problem.launcher.recompute_modules
    return tuple(name for name in _applicable(problem.model, problem.spec.training.fused_kernels) if name in known)


@lru_cache(maxsize=64)
def _applicable(model: Architecture, fused: bool) -> Modules:
    kinds, moe = [part for kind in layer_kinds(model) for part, _ in kind.parts], model.moe
    dense, experts = any(kind.dense for kind in kinds), any(kind.experts for kind in kinds)
    may = {
        "core_attn": any(kind.attends for kind in kinds),
        "layernorm": any(_separate_norms(model, fused, kind) for kind in kinds),
        "mla_up_proj": projects_up(model) and any(kind.attends for kind in kinds),
        "moe_act": experts,
        "mlp": dense,
        "moe": experts,
        "shared_experts": experts and moe is not None and moe.shared_experts > 0,
        "operators": True,
    }
    return tuple(name for name in MODULES if may[name])


def projects_up(model: Architecture) -> bool:
    """Latent attention's projections from low ranks are a module of their own: its core does not take these."""
    return model.attention.kind == "mla" and not gemms.absorbed(model.attention)


def module_sets(problem: Problem) -> tuple[Modules, ...]:
    """The sets that a search tries, attention's core alone first; sets that are pinned come last."""
    sets = _sets(problem.model, applicable(problem))
    pinned = problem.spec.search.pin.recompute_modules or {}
    more = (canonical_modules(names) for key in (ALL_CHIPS, *problem.chip_names) for names in pinned.get(key, ()))
    known = set(MODULES)
    return tuple(dict.fromkeys((*sets, *(names for names in more if known.issuperset(names)))))


@lru_cache(maxsize=64)
def _sets(model: Architecture, names: Modules) -> tuple[Modules, ...]:
    """Where some layers are dense, they count for as much as those that keep most (see tables.MemoryTable): unless
    they are the wider ones, mlp goes with moe only."""
    parts = [((), (name,)) for name in names if name in ("core_attn", "layernorm", "mla_up_proj")]
    inside = [((), (name,)) for name in names if name in ("moe_act", "shared_experts")]
    blocks = [canonical_modules(chain(*choice)) for choice in product(*inside)]
    whole: list[Modules] = [("moe",)] if "moe" in names else []
    if "mlp" in names:
        moe = model.moe
        dense_is_wider = moe is None or model.ffn > moe.computed * moe.expert_ffn + moe.shared_width
        both = dense_is_wider or (moe is not None and moe.shortcut)
        with_mlp: list[Modules] = [*blocks, *whole] if not whole or both else whole
        whole = [*whole, *(("mlp", *modules) for modules in with_mlp)]
    sets = {canonical_modules(chain(*choice)) for choice in product(*parts, [*blocks, *whole])} - {(), CORE}
    sets |= {OPERATORS} if "operators" in names else set()
    return (CORE, *sorted(sets, key=lambda names: [MODULES.index(name) for name in names]))


def _separate_norms(model: Architecture, fused: bool, kind: LayerKind) -> int:
    """Norms before attention and feed-forward block that are modules of their own, not part of a linear layer.

    Transformer Engine has the norm in the linear layer after it; before experts, and before the several projections of
    latent attention, there is no such one (Megatron-LM core/models/gpt/gpt_layer_specs.py).
    """
    if not fused:
        return kind.branches
    return int(model.attention.kind == "mla" and kind.attends) + int(kind.experts)


@lru_cache(maxsize=256)
def incidence(sets: tuple[Modules, ...]) -> Bools:
    """Which modules each set has: (sets, MODULES)."""
    return np.array([[name in names for name in MODULES] for names in sets], dtype=np.bool_).reshape(-1, len(MODULES))


def most_freed(freed: Floats, short: Floats) -> Floats:
    """The most bytes that a layer keeps less with any modules recomputed, in the kind where it is least: (n,)."""
    at = {name: freed[:, index] for index, name in enumerate(MODULES)}
    block = at["mlp"] + np.maximum(at["moe"], at["moe_act"] + at["shared_experts"])
    named = at["core_attn"] + at["layernorm"] + at["mla_up_proj"] + block
    return np.asarray((short + np.maximum(named, at["operators"])).min(axis=0))


def freed_by_kind(freed: Floats, short: Floats, sets: tuple[Modules, ...]) -> Floats:
    """Bytes that a layer of each kind keeps less under each set than one of the kind that keeps most does without:
    (kinds, sets, n).

    `freed` (kinds, MODULES, n) by module; `short` (kinds, n): what a kind keeps less than the one that keeps most.
    """
    has = incidence(sets).astype(np.float64)
    return np.stack([less + has @ modules for modules, less in zip(freed, short, strict=True)])


def replayed(freed: Floats, sets: tuple[Modules, ...]) -> Floats:
    """Bytes that are there once while a module is recomputed, of the largest in each set: (sets, n).

    The gradients of attention's core, which live then, are counted among the buffers.
    """
    has, most = incidence(sets), freed.max(axis=0)
    largest = np.zeros((len(sets), most.shape[1]))
    for index, name in enumerate(MODULES):
        if name not in CORE and most[index].any():
            largest[has[:, index]] = np.maximum(largest[has[:, index]], most[index])
    return largest


def freed_bytes(problem: Problem, shard: Shard, kind: LayerKind, core: Floats, fed: Floats) -> Floats:
    """Bytes of a layer that each module does not keep: (MODULES, n).

    Outputs of norms before frozen layers are not there to be dropped, but before experts. `core` are attention's core's
    beside its inputs and output; `fed` all that the feed-forward block keeps.
    """
    problem = problem_of(problem, kind)
    model, moe = problem.model, problem.model.moe
    tokens, tp = shard.tokens(problem.sequence), shard.tp.astype(np.float64)
    fused = problem.spec.training.fused_kernels
    norm, separate = (
        problem.element_bytes * model.hidden * tokens / shard.sequence_split,
        _separate_norms(model, fused, kind) if problem.lora is None else int(kind.experts),
    )
    freed = dict.fromkeys(MODULES, np.zeros(len(tokens)))
    freed["core_attn"], freed["layernorm"] = np.where(shard.flash_attention, 0.0, core), separate * norm
    if projects_up(model) and kind.attends:
        freed["mla_up_proj"] = up_projected_bytes(problem, shard)
    if kind.experts and moe is not None:
        gates = 2 if model.gated_mlp else 1
        freed["moe"] = fed
        routed = gemms.routed_load(problem) * moe.computed * moe.expert_ffn / tp
        freed["moe_act"] = problem.element_bytes * tokens * (1 + problem.stack.kept_weighted_activations) * routed
        freed["shared_experts"] = problem.element_bytes * tokens * (gates + 1) * moe.shared_width / tp
    elif kind.dense:
        freed["mlp"] = fed + (norm if fused and problem.lora is None else 0.0)
    if "operators" in applicable(problem) and kind.attends and kind.feed_forward:
        freed["operators"] = _freed_operators(problem, shard, kind, freed)
    return np.stack([freed[name] for name in MODULES])


def up_projected_bytes(problem: Problem, shard: Shard) -> Floats:
    """Bytes of latent attention's queries, keys and values, and of the norms' results that they are projected from."""
    model, attention = problem.model, problem.model.attention
    keys, values = gemms.core_widths(model)
    ranks = (attention.q_lora or 0) + (attention.kv_lora or 0)
    heads = model.heads / shard.tp.astype(np.float64)
    return np.asarray(problem.element_bytes * shard.tokens(problem.sequence) * (heads * (2 * keys + values) + ranks))


def _freed_operators(problem: Problem, shard: Shard, kind: LayerKind, freed: dict[str, Floats]) -> Floats:
    """Bytes of a layer that are made again where operators are recomputed.

    Of GEMMs in their order (queries, keys, values, output; gate, up, down) every second one's results; all norms'
    inputs and outputs but what goes into the layer, and what sequence parallelism scattered (tp > 1); the activation's
    output. Of routed experts no GEMM's results, and nothing of their exchange.
    """
    model, tokens, tp = problem.model, shard.tokens(problem.sequence), shard.tp.astype(np.float64)
    again = norms(model, kind) + kind.branches - 1 - (shard.tp > 1)
    normed = problem.element_bytes * again * model.hidden * tokens / shard.sequence_split
    keys = problem.element_bytes * tokens * gemms.core_kv_heads(model, shard) * model.head_dim
    attention = freed["mla_up_proj"] if model.attention.kind == "mla" else keys
    if kind.experts:
        return np.asarray(normed + attention + freed["moe_act"] + freed["shared_experts"] / 2)
    return np.asarray(
        normed + attention + problem.element_bytes * tokens * (2 if model.gated_mlp else 1) * model.ffn / tp
    )


def module_seconds(
    problem: Problem, chip: Chip, shard: Shard, kind: LayerKind, layer: LayerSeconds, inside: LayerComm
) -> Floats:
    """Seconds of a layer's forward pass that each module takes, with its communication: (MODULES, n)."""
    problem = problem_of(problem, kind)
    model, tokens = problem.model, shard.tokens(problem.sequence)
    fused = problem.spec.training.fused_kernels
    device, none = ChipSpeeds(problem, chip), np.zeros(len(tokens))
    norm = compute.stream(
        problem, device, Traffic("norm", 2 * model.hidden * tokens / shard.sequence_split, 1, "norm_traffic")
    )
    taken = dict.fromkeys(MODULES, none)
    taken["core_attn"], taken["layernorm"] = layer.core, _separate_norms(model, fused, kind) * norm
    block = layer.block + inside.block
    if projects_up(model) and kind.attends:
        (taken["mla_up_proj"],) = shard.of_distinct(
            (*OF_EXPERTS, *OF_ATTENTION), lambda part: (up_projection_seconds(problem, chip, part),)
        )
    if kind.experts:
        taken["moe"] = block
        both = shard.of_distinct(NOT_COMPUTED, lambda part: _inside_experts(problem, chip, part))
        taken["moe_act"], taken["shared_experts"] = both
    elif kind.dense:
        taken["mlp"] = block + (norm if fused else 0.0)
    if "operators" in applicable(problem) and kind.attends and kind.feed_forward:
        (kept,) = shard.of_distinct(NOT_COMPUTED, lambda part: (_spared_gemms(problem, chip, part, kind),))
        block_s = layer.block if kind.experts else none
        gathered = np.where(shard.tp > 1, inside.forward - inside.block * kind.experts, 0.0) / 2
        taken["operators"] = np.maximum(0.0, layer.forward - layer.core - block_s - kept) + gathered
    return np.stack([taken[name] for name in MODULES])


def _spared_gemms(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> Floats:
    """Seconds of the GEMMs whose results stay where operators are recomputed, forward: queries and values, and of a
    dense block gate and down (the last one's results nothing asks for)."""
    model, device, tokens = problem.model, ChipSpeeds(problem, chip), shard.tokens(problem.sequence)
    tp, width = shard.tp.astype(np.float64), sum(gemms.core_widths(model))
    hidden = np.full_like(tp, model.hidden)
    kv_heads = np.maximum(1.0, model.kv_heads / tp)
    made_of = [gemms.Gemm("qkv", (model.heads / tp + kv_heads) * width / 2, hidden)]
    if not kind.experts:
        ffn = model.ffn / tp
        made_of += [
            gemms.Gemm("mlp down", hidden, ffn),
            *([gemms.Gemm("mlp up", ffn, hidden)] if model.gated_mlp else []),
        ]
    return compute.part_seconds(problem, device, made_of, tokens, [])[0]


def up_projection_seconds(problem: Problem, chip: Chip, shard: Shard) -> Floats:
    """Forward of latent attention's GEMMs from low ranks, or from the hidden states where queries have none, and
    rotation."""
    model, attention, device = problem.model, problem.model.attention, ChipSpeeds(problem, chip)
    tokens, heads = shard.tokens(problem.sequence), problem.model.heads / shard.tp.astype(np.float64)
    keys, values = gemms.core_widths(model)
    made_of = [
        gemms.Gemm("q up", heads * keys, np.full_like(heads, attention.q_lora or model.hidden)),
        gemms.Gemm("kv up", heads * ((attention.qk_nope or 0) + values), np.full_like(heads, attention.kv_lora or 0)),
    ]
    turned = 2 * (model.heads + model.kv_heads) / shard.tp * model.head_dim * tokens * (model.position == "rope")
    return compute.part_seconds(problem, device, made_of, tokens, [Traffic("rotary embedding", turned, 1)])[0]


def _inside_experts(problem: Problem, chip: Chip, shard: Shard) -> tuple[Floats, Floats]:
    """Activation functions of routed experts; shared experts with their communication, as far as it is counted."""
    model, moe, device = problem.model, problem.model.moe, ChipSpeeds(problem, chip)
    assert moe is not None
    tokens, inside = shard.tokens(problem.sequence), 3 if model.gated_mlp else 2
    routed = inside * gemms.routed_load(problem) * moe.computed * moe.expert_ffn / shard.tp * tokens
    active = compute.stream(problem, device, Traffic("activation", routed, 1))
    if not moe.shared_experts:
        return active, np.zeros(len(tokens))
    width = moe.shared_width
    made_of = gemms.feed_forward_gemms(model, shard, width)
    shared = compute.part_seconds(
        problem, device, made_of, tokens, [Traffic("activation function", inside * width / shard.tp * tokens, 1)]
    )[0]
    exchange = comm.end_comm(problem, chip, shard) * (1 - problem.stack.tensor_overlap)
    return active, shared + np.where(shard.etp == shard.tp, 0.0, exchange)
