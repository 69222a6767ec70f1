"""Low-rank adapters beside frozen linear layers (LoRA): their GEMMs, what they communicate, and what they keep.

As Megatron-Bridge 067f987 runs them (peft/lora.py, peft/utils.py, ParallelLinearAdapter): two linear layers without
bias in 16 bits. Beside a column-parallel layer (qkv, fc1) the first is split by its results, beside a row-parallel one
(proj, fc2) by its inputs, and the second by its results always. Each is split over all tensor-parallel ranks, so that
the frozen layer's share of a rank and the adapter's stand side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from cpsolver.cost.collectives import Collective, collective_seconds
from cpsolver.cost.gemms import Gemm
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

    `inputs` and `outputs`: elements a token that go in and come out. `row`: the layer beside it is row-parallel.
    """

    inputs: int
    outputs: int
    row: bool

    def widths(self, shard: Shard) -> tuple[Floats, Floats]:
        """Elements a token that a rank has of what goes into the adapter, and of what its second layer gives."""
        tp = shard.tp.astype(np.float64)
        return self.inputs / (tp if self.row else np.ones_like(tp)), self.outputs / tp


def adapters(problem: Problem, kind: LayerKind, block: Block) -> tuple[Adapter, ...]:
    """Those of a layer of that kind in one of its blocks; none where all weights are trained, or beside experts."""
    if problem.lora is None or not (kind.attends if block == "attention" else kind.dense):
        return ()
    known = _beside(problem.model, block)
    return tuple(known[name] for name in problem.lora.targets if name in known)


def _beside(model: Architecture, block: Block) -> dict[Target, Adapter]:
    hidden = model.hidden
    if block == "mlp":
        gates = 2 if model.gated_mlp else 1
        return {
            "linear_fc1": Adapter(hidden, gates * model.ffn, row=False),
            "linear_fc1_gate": Adapter(hidden, model.ffn, row=False),
            "linear_fc1_up": Adapter(hidden, model.ffn, row=False),
            "linear_fc2": Adapter(model.ffn, hidden, row=True),
        }
    queries = model.heads * model.head_dim * (2 if model.attention.output_gate else 1)
    keys = model.kv_heads * model.head_dim
    return {
        "linear_qkv": Adapter(hidden, queries + 2 * keys, row=False),
        "linear_q": Adapter(hidden, queries, row=False),
        "linear_k": Adapter(hidden, keys, row=False),
        "linear_v": Adapter(hidden, keys, row=False),
        "linear_proj": Adapter(model.heads * model.head_dim, hidden, row=True),
    }


def layer_adapter_parameters(problem: Problem) -> tuple[int, ...]:
    """Parameters of the adapters of one layer of each kind, of all ranks: rank times inputs and outputs of each."""
    rank = 0 if problem.lora is None else problem.lora.rank
    both: tuple[Block, ...] = ("attention", "mlp")
    return tuple(
        sum(rank * (each.inputs + each.outputs) for block in both for each in adapters(problem, kind, block))
        for kind in layer_kinds(problem.model)
    )


def adapter_gemms(problem: Problem, shard: Shard, kind: LayerKind, block: Block) -> list[Gemm]:
    """The GEMMs of a block's adapters for one device, two for each."""
    found, tp = [], shard.tp.astype(np.float64)
    for each in adapters(problem, kind, block):
        rank = np.full_like(tp, problem.lora.rank if problem.lora else 0)
        inputs, outputs = each.widths(shard)
        found += [Gemm("adapters", rank if each.row else rank / tp, inputs), Gemm("adapters", outputs, rank)]
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
        inputs, outputs = each.widths(shard)
        scattered = each.outputs / shard.sequence_split if each.row else outputs
        forward = forward + 5 * scattered + 2 * dropped * inputs
        backward = backward + 2 * scattered + (3 + 2 * dropped) * inputs
        kernels += 2 + dropped
    return AdapterTraffic(forward, backward, kernels)


def adapter_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind, block: Block) -> tuple[Floats, Floats]:
    """Communication of a block's adapters over tensor-parallel ranks, forward and backward; nothing hides it.

    The narrow state between the two layers is brought together forward, and its gradient summed backward. A
    column-parallel layer's input comes gathered with the layer's own, unless that gathers it in pieces under its GEMM
    (`tensor_overlap`): then it is gathered once more, and its gradient scattered; without sequence parallelism that
    gradient is summed. Beside a row-parallel layer all results are gathered, and with sequence parallelism their
    gradients too; or both go by all-to-all.
    """
    forward, backward = np.zeros(len(shard.tp)), np.zeros(len(shard.tp))
    lora, tokens, split = problem.lora, shard.tokens(problem.sequence), shard.sequence_parallel
    if lora is None or not (shard.tp > 1).any():
        return forward, backward

    def seconds(collective: Collective, elements: Floats | float) -> Floats:
        payload = np.asarray(problem.element_bytes * tokens * elements)
        return collective_seconds(problem, chip, collective, payload, shard.tp, np.ones_like(shard.tp))

    regathered = split & (problem.stack.tensor_overlap > 0)
    for each in adapters(problem, kind, block):
        forward = forward + seconds("all_reduce" if each.row else "all_gather", lora.rank)
        backward = backward + seconds("all_reduce", lora.rank)
        if not each.row:
            gathered, scattered = seconds("all_gather", each.inputs), seconds("reduce_scatter", each.inputs)
            forward = forward + np.where(regathered, gathered, 0.0)
            backward = backward + np.where(regathered, scattered, 0.0)
            backward = backward + np.where(split, 0.0, seconds("all_reduce", each.inputs))
            continue
        whole, parts = seconds("all_gather", each.outputs), seconds("all_to_all", each.outputs / shard.tp)
        forward = forward + np.where(split & lora.all_to_all, parts, whole)
        backward = backward + np.where(split, parts if lora.all_to_all else whole, 0.0)
    return forward, backward


def adapter_bytes(problem: Problem, shard: Shard, kind: LayerKind, block: Block) -> Floats:
    """Bytes that a block's adapters keep of a microbatch on one device, beside what the layer keeps without them.

    The first linear layer keeps its input: beside a column-parallel layer the norm's output, gathered from all ranks,
    which a frozen layer does not keep; beside fc2 the activation's output; attention's output is kept anyway. With
    dropout each has a copy of its own, and a mask of a byte each. The second keeps the narrow state.
    """
    lora, tokens = problem.lora, shard.tokens(problem.sequence)
    kept, shared = np.zeros(len(tokens)), False
    if lora is None:
        return kept
    own_copies = shard.sequence_parallel & (problem.stack.tensor_overlap > 0)
    for each in adapters(problem, kind, block):
        inputs, _ = each.widths(shard)
        kept = kept + problem.element_bytes * lora.rank * tokens
        if lora.dropout:
            kept = kept + (problem.element_bytes + 1) * inputs * tokens
        elif not each.row:  # adapters of the parts of one layer keep one input, but where each gathers it for itself
            kept = kept + np.where(own_copies | (not shared), problem.element_bytes * inputs * tokens, 0.0)
            shared = True
        elif block == "mlp":
            kept = kept + problem.element_bytes * inputs * tokens
    return kept


def widest_result(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """Elements a token of the widest result of a layer's adapters before it is added: gathered beside row-parallel."""
    both: tuple[Block, ...] = ("attention", "mlp")
    widest = np.zeros(len(shard.tp))
    for each in (each for block in both for each in adapters(problem, kind, block)):
        widest = np.maximum(widest, each.outputs if each.row else each.widths(shard)[1])
    return widest


def trained_in_all(problem: Problem) -> int | None:
    """Parameters that are trained in all; None: all of the model's."""
    if problem.lora is None:
        return None
    each = layer_adapter_parameters(problem)
    return sum(each[kind] for kind in kind_of_layers(problem.model))
