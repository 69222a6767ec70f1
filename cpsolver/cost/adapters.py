"""Low-rank adapters beside frozen linear layers (LoRA): their GEMMs, what they communicate, and what they keep.

As Megatron-Bridge 067f987 runs them (peft/lora.py, peft/utils.py, ParallelLinearAdapter): two linear layers without
bias in 16 bits. Beside a column-parallel layer (qkv, fc1) the first is split by its results, beside a row-parallel one
(proj, fc2) by its inputs, and the second by its results always. Each is split over all tensor-parallel ranks, so that
the frozen layer's share of a rank and the adapter's stand side by side.

Beside a layer's routed experts stands one adapter for all of them, which every expert-parallel rank holds and runs on
all tokens that its experts get, in one GEMM; its gradients are summed over these ranks in every backward pass
(share_expert_adapters, _allreduce_shared_expert_grad). Or each expert has its own, on the rank that has the expert, in
grouped GEMMs (GroupedExpertLinearAdapter of 0.6.2; LoraParallelLinear of mcore-bridge 1.6.5, which ms-swift runs).
Shared experts have adapters as a dense block has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from cpsolver.cost.collectives import Collective, collective_seconds
from cpsolver.cost.gemms import Gemm, core_widths, routed_load
from cpsolver.cost.kinds import LayerKind, kind_of_layers, layer_kinds
from cpsolver.cost.shard import Floats, Shard
from cpsolver.problem.problem import Problem
from cpsolver.spec.training import Target
from hw_specs import Chip
from models_zoo import Architecture

Block = Literal["attention", "mlp"]


@dataclass(frozen=True)
class Adapter:
    """A pair beside one linear layer, of all tensor-parallel ranks together.

    `inputs` and `outputs`: elements a token that go in and come out. `row`: the layer beside it is row-parallel;
    `whole`: every rank has all of that layer, and all of the adapter's result. `routed`: beside routed experts.
    `source`: what goes in, kept once for all that share it; `gathers`: the layer beside it gathers that for itself.
    """

    inputs: int
    outputs: int
    row: bool = False
    whole: bool = False
    routed: bool = False
    source: str = "norm"
    gathers: bool = False

    def widths(self, shard: Shard) -> tuple[Floats, Floats]:
        """Elements a token that a rank has of what goes into the adapter, and of what its second layer gives."""
        tp = np.ones(len(shard.tp)) if self.routed else shard.tp.astype(np.float64)
        return self.inputs / (tp if self.row else np.ones_like(tp)), self.outputs / tp

    def results(self, shard: Shard) -> Floats:
        """Elements a token of the result that is added to the frozen layer's on a rank."""
        if self.row and not self.routed:
            return self.outputs / shard.sequence_split.astype(np.float64)
        return np.full(len(shard.tp), float(self.outputs)) if self.whole else self.widths(shard)[1]


def adapters(problem: Problem, kind: LayerKind, block: Block) -> tuple[Adapter, ...]:
    """Those of a layer of that kind in one of its blocks; none where all weights are trained."""
    if problem.lora is None:
        return ()
    known = _beside(problem.model, kind, block)
    return tuple(each for name in problem.lora.targets for each in known.get(name, ()))


def _beside(model: Architecture, kind: LayerKind, block: Block) -> dict[Target, tuple[Adapter, ...]]:
    if block == "attention":
        own = (_of_latent if model.attention.kind == "mla" else _of_heads)(model) if kind.attends else {}
        return {name: (adapter,) for name, adapter in own.items()}
    if kind.dense:
        return {name: (adapter,) for name, adapter in _of_block(model, model.ffn).items()}
    moe = model.moe
    if not kind.experts or moe is None:
        return {}
    gates = 2 if model.gated_mlp else 1
    up = Adapter(model.expert_width, gates * moe.expert_ffn, routed=True, source="tokens")
    down = Adapter(moe.expert_ffn, model.expert_width, row=True, routed=True, source="activation")
    shared = _of_block(model, moe.shared_width) if moe.shared_experts else {}
    found: dict[Target, tuple[Adapter, ...]] = {"linear_fc1": (up,), "linear_fc2": (down,)}
    return {name: (*own, *((replace(shared[name], gathers=True),) if shared else ())) for name, own in found.items()}


def _of_block(model: Architecture, ffn: int) -> dict[Target, Adapter]:
    hidden, gates = model.hidden, 2 if model.gated_mlp else 1
    return {
        "linear_fc1": Adapter(hidden, gates * ffn),
        "linear_fc1_gate": Adapter(hidden, ffn),
        "linear_fc1_up": Adapter(hidden, ffn),
        "linear_fc2": Adapter(ffn, hidden, row=True, source="activation"),
    }


def _of_heads(model: Architecture) -> dict[Target, Adapter]:
    hidden = model.hidden
    queries = model.heads * model.head_dim * (2 if model.attention.output_gate else 1)
    keys = model.kv_heads * model.head_dim
    return {
        "linear_qkv": Adapter(hidden, queries + 2 * keys),
        "linear_q": Adapter(hidden, queries),
        "linear_k": Adapter(hidden, keys),
        "linear_v": Adapter(hidden, keys),
        "linear_proj": Adapter(model.heads * model.head_dim, hidden, row=True, source="attention"),
    }


def _of_latent(model: Architecture) -> dict[Target, Adapter]:
    """Of latent attention: the projections to low ranks are whole on every rank, those from them split by heads."""
    hidden, attention, heads = model.hidden, model.attention, model.heads
    q_rank, kv_rank, rope = attention.q_lora or 0, attention.kv_lora or 0, attention.qk_rope or 0
    keys, values = core_widths(model)
    nope = keys - rope
    return {
        "linear_q_proj": Adapter(hidden, heads * keys),
        "linear_q_down_proj": Adapter(hidden, q_rank, whole=True),
        "linear_q_up_proj": Adapter(q_rank, heads * keys, source="queries"),
        "linear_kv_down_proj": Adapter(hidden, kv_rank + rope, whole=True),
        "linear_kv_up_proj": Adapter(kv_rank, heads * (nope + values), source="keys"),
        "linear_proj": Adapter(heads * values, hidden, row=True, source="attention"),
    }


def every_adapter(problem: Problem) -> tuple[Adapter, ...]:
    """Those of all kinds of layers."""
    both: tuple[Block, ...] = ("attention", "mlp")
    kinds = layer_kinds(problem.model) if problem.lora is not None else ()
    parts = [part for kind in kinds for part, _ in kind.parts]
    return tuple(each for part in parts for block in both for each in adapters(problem, part, block))


def splits_rank(problem: Problem) -> bool:
    """Tensor-parallel ranks share the rank of some adapter."""
    return any(not each.row and not each.routed for each in every_adapter(problem))


def layer_adapter_parameters(problem: Problem, routed: bool | None = None) -> tuple[int, ...]:
    """Parameters of the adapters of one layer of each kind, of all ranks: rank times inputs and outputs of each.

    `routed`: those beside routed experts alone, or all others alone; None: all of them.
    """
    rank = 0 if problem.lora is None else problem.lora.rank
    both: tuple[Block, ...] = ("attention", "mlp")
    return tuple(
        sum(
            count * rank * (each.inputs + each.outputs) * pairs(problem, each)
            for part, count in kind.parts
            for block in both
            for each in adapters(problem, part, block)
            if routed in (None, each.routed)
        )
        for kind in layer_kinds(problem.model)
    )


def pairs(problem: Problem, each: Adapter) -> int:
    """How many pairs of matrices an adapter is in all: one for each expert where they do not share it."""
    lora, moe = problem.lora, problem.model.moe
    return moe.experts if each.routed and moe is not None and lora and not lora.share_expert_adapters else 1


def _copies(problem: Problem, shard: Shard, each: Adapter, load: float) -> Floats:
    """How many of a token's copies an adapter sees on a device: beside experts each that they get."""
    moe = problem.model.moe
    if not each.routed or moe is None:
        return np.ones(len(shard.tp))
    return load * moe.computed / shard.tp.astype(np.float64)


def adapter_gemms(
    problem: Problem, shard: Shard, kind: LayerKind, block: Block, load: float | None = None
) -> list[Gemm]:
    """The GEMMs of a block's adapters for one device, two for each. `load`: as `gemms.routed_load`, its default."""
    found, tp = [], shard.tp.astype(np.float64)
    for each in adapters(problem, kind, block):
        rank = np.full_like(tp, problem.lora.rank if problem.lora else 0)
        inputs, outputs = each.widths(shard)
        rows = _copies(problem, shard, each, routed_load(problem) if load is None else load)
        narrow = rank if each.row or each.routed else rank / tp
        grouped = pairs(problem, each) > 1
        local = np.maximum(1.0, pairs(problem, each) / shard.ep)
        sizes = (narrow, inputs), (outputs, rank)
        found += [Gemm("adapters", n, k, rows / local, local, grouped) for n, k in sizes]
    return found


@dataclass(frozen=True)
class AdapterTraffic:
    """Elements a token that kernels beside a block's GEMMs of adapters read and write in either pass, and how many
    kernels a pass has."""

    forward: Floats
    backward: Floats
    kernels: int


def adapter_traffic(problem: Problem, shard: Shard, kind: LayerKind, block: Block) -> AdapterTraffic:
    """Forward: the result is scaled (read, written) and added to the frozen layer's (two read, one written).

    Backward: the gradient is scaled, and that of the input added to the frozen layer's. With dropout the input, and its
    gradient, are read and written once more.
    """
    forward, backward, kernels = np.zeros(len(shard.tp)), np.zeros(len(shard.tp)), 0
    dropped = problem.lora is not None and problem.lora.dropout > 0
    for each in adapters(problem, kind, block):
        copies = _copies(problem, shard, each, routed_load(problem))
        inputs, results = copies * each.widths(shard)[0], copies * each.results(shard)
        forward = forward + 5 * results + 2 * dropped * inputs
        backward = backward + 2 * results + (3 + 2 * dropped) * inputs
        kernels += 2 + dropped
    return AdapterTraffic(forward, backward, kernels)


def adapter_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind, block: Block) -> tuple[Floats, Floats]:
    """Communication of a block's adapters over tensor-parallel ranks, forward and backward; nothing hides it.

    The narrow state between the two layers is brought together forward, and its gradient summed backward. A
    column-parallel layer's input comes gathered with the layer's own, unless that gathers it in pieces under its GEMM
    (`tensor_overlap`) or behind no norm: then it is gathered once more, and its gradient scattered; without sequence
    parallelism that gradient is summed. Beside a row-parallel layer all results are gathered, and with sequence
    parallelism their gradients too; or both go by all-to-all. Beside a whole layer the results are gathered. One that
    routed experts share sums the gradients of its two matrices over expert-parallel ranks.
    """
    forward, backward = np.zeros(len(shard.tp)), np.zeros(len(shard.tp))
    lora, tokens, split = problem.lora, shard.tokens(problem.sequence), shard.sequence_parallel
    if lora is None or not ((shard.tp > 1) | (shard.ep > 1)).any():
        return forward, backward

    def seconds(collective: Collective, elements: Floats | float) -> Floats:
        payload = np.asarray(problem.element_bytes * tokens * elements)
        return collective_seconds(problem, chip, collective, payload, shard.tp, np.ones_like(shard.tp))

    overlapped = split & (problem.stack.tensor_overlap > 0)
    for each in adapters(problem, kind, block):
        if each.routed:
            shared = pairs(problem, each) == 1
            backward = backward + (_summed_over_experts(problem, chip, shard, each) if shared else 0.0)
            continue
        forward = forward + seconds("all_reduce" if each.row else "all_gather", lora.rank)
        backward = backward + seconds("all_reduce", lora.rank)
        if not each.row:
            regathered = (split if each.gathers else overlapped) & (not each.whole)
            gathered, scattered = seconds("all_gather", each.inputs), seconds("reduce_scatter", each.inputs)
            forward = forward + np.where(regathered, gathered, 0.0)
            backward = backward + np.where(regathered, scattered, 0.0)
            backward = backward + np.where(split, 0.0, seconds("all_reduce", each.inputs))
            forward = forward + (seconds("all_gather", each.outputs) if each.whole else 0.0)
            continue
        whole, parts = seconds("all_gather", each.outputs), seconds("all_to_all", each.outputs / shard.tp)
        forward = forward + np.where(split & lora.all_to_all, parts, whole)
        backward = backward + np.where(split, parts if lora.all_to_all else whole, 0.0)
    return forward, backward


def _summed_over_experts(problem: Problem, chip: Chip, shard: Shard, each: Adapter) -> Floats:
    """Seconds of summing the gradients of an adapter's two matrices, in 16 bits, over expert-parallel ranks."""
    rank, found = 0 if problem.lora is None else problem.lora.rank, np.zeros(len(shard.tp))
    for elements in (each.inputs, each.outputs):
        payload = np.full(len(shard.tp), float(problem.element_bytes * rank * elements))
        found = found + collective_seconds(problem, chip, "all_reduce", payload, shard.ep, np.ones_like(shard.ep))
    return found


def adapter_bytes(problem: Problem, shard: Shard, kind: LayerKind, block: Block) -> Floats:
    """Bytes that a block's adapters keep of a microbatch on one device, beside what the layer keeps without them.

    The first linear layer keeps its input: beside a column-parallel layer the norm's output, gathered from all ranks,
    which a frozen layer does not keep; beside fc2 the activation's output; attention's output is kept anyway, and so
    are routed experts' inputs and activations, unless in fewer bits. With dropout each has a copy of its own, and a
    mask of a byte each. The second keeps the narrow state.
    """
    lora, tokens = problem.lora, shard.tokens(problem.sequence)
    kept, held = np.zeros(len(tokens)), set[str]()
    if lora is None:
        return kept
    own_copies = shard.sequence_parallel & (problem.stack.tensor_overlap > 0)
    for each in adapters(problem, kind, block):
        copies = _copies(problem, shard, each, routed_load(problem)) * tokens
        inputs, _ = each.widths(shard)
        kept = kept + problem.element_bytes * lora.rank * copies
        if lora.dropout:
            kept = kept + (problem.element_bytes + 1) * inputs * copies
        elif each.routed:
            kept = kept + problem.narrow_activations * problem.element_bytes * inputs * copies
        elif not each.row:  # adapters of the parts of one layer keep one input, but where each gathers it for itself
            once = own_copies | (each.source not in held)
            kept = kept + np.where(once, problem.element_bytes * inputs * tokens, 0.0)
            held.add(each.source)
        elif block == "mlp":
            kept = kept + problem.element_bytes * inputs * tokens * (kind.dense or problem.narrow_activations)
    return kept


def widest_result(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """Elements a token of the widest result of a layer's adapters before it is added: gathered beside row-parallel."""
    both: tuple[Block, ...] = ("attention", "mlp")
    widest = np.zeros(len(shard.tp))
    for each in (each for block in both for each in adapters(problem, kind, block)):
        copies = _copies(problem, shard, each, routed_load(problem))
        widest = np.maximum(widest, copies * (each.outputs if each.row or each.whole else each.widths(shard)[1]))
    return widest


def trained_in_all(problem: Problem) -> int | None:
    """Parameters that are trained in all; None: all of the model's."""
    if problem.lora is None:
        return None
    each = layer_adapter_parameters(problem)
    return sum(each[kind] for kind in kind_of_layers(problem.model))
