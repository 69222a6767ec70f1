"""Seconds that a device computes: GEMMs by shape, attention by kernel, the rest by memory traffic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from operator import add
from typing import Literal, NamedTuple

import numpy as np

from cpsolver.cost import gemms
from cpsolver.cost.adapters import Block, adapter_gemms, adapter_traffic
from cpsolver.cost.chip_speeds import ChipSpeeds, attention_constants
from cpsolver.cost.gemms import Gemm
from cpsolver.cost.kinds import LayerKind, norms, problem_of
from cpsolver.cost.recurrence import mixer_gemms, recurrence
from cpsolver.cost.routing import reordered_rows
from cpsolver.cost.selection import computed_share, scored_keys
from cpsolver.cost.shard import NOT_COMPUTED, OF_EXPERTS, Bools, Floats, Ints, Shard, padded_vocabulary
from cpsolver.cost.states import base_bytes
from cpsolver.problem.problem import Problem
from hw_specs import Chip


@dataclass(frozen=True)
class LayerSeconds:
    """One layer of one kind, one microbatch, one device, without communication.

    Within `forward`, `core` is attention's core and `block` the feed-forward block. `host` is what the host takes to
    launch one pass over the layer.
    """

    forward: Floats
    backward: Floats
    core: Floats
    block: Floats
    host: Floats


@dataclass(frozen=True)
class Operator:
    """Kernels of one name: one layer (or what stands before or after all layers), one microbatch, one device.

    `passes`: seconds of the forward and of the backward pass, or of both in one number. `rests_on`: the chip's
    efficiencies and the stack's constants that its speed comes from.
    """

    name: str
    passes: tuple[Floats, ...]
    rests_on: tuple[str, ...]


def together(operators: Sequence[Operator]) -> tuple[Floats, ...]:
    """Seconds of some operators by pass."""
    return tuple(reduce(add, seconds) for seconds in zip(*(each.passes for each in operators), strict=True))


@dataclass(frozen=True)
class EndSeconds:
    """Forward plus backward of what stands before the first layer and after the last one.

    `module` is one module of multi-token prediction but for its transformer layer.
    """

    embedding: Floats
    head: Floats
    module: Floats


def layer_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> LayerSeconds:
    """One transformer layer of that kind on one device."""
    if not kind.made_of:
        return part_of_layer_seconds(problem, chip, shard, kind)
    each = [(count, part_of_layer_seconds(problem, chip, shard, part)) for part, count in kind.made_of]
    names = [field.name for field in fields(LayerSeconds)]
    return LayerSeconds(*(reduce(add, (count * getattr(of, name) for count, of in each)) for name in names))


def part_of_layer_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> LayerSeconds:
    """The same of a layer with one mixer and one feed-forward block, or of such a part of one."""
    mixer = shard.of_distinct(OF_EXPERTS, lambda part: _mixer_seconds(problem, chip, part, kind))
    block = shard.of_distinct(NOT_COMPUTED, lambda part: _block_seconds(problem, chip, part, kind))
    host = _host_seconds(problem, shard, kind)
    return LayerSeconds(mixer[0] + block[0], mixer[1] + block[1], mixer[2], block[0], host)


def layer_operators(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> list[Operator]:
    """What `layer_seconds` adds up to forward and backward."""
    found: list[Operator] = []
    for part, count in kind.parts:
        found += count * [*_mixer(problem, chip, shard, part), *_block(problem, chip, shard, part)]
    return found


def _host_seconds(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """What the host takes to launch one pass over a layer; a graph of the whole iteration leaves it nothing to do.

    A dense layer that is one block alone, or a mixer alone, has half the kernels; so has each expert that a device runs
    after another.
    """
    stack, scope = problem.stack, problem.cuda_graph
    if scope == "full":
        return np.zeros(len(shard.tp))
    if not kind.experts:
        alone = kind.mixer == "none" or not kind.feed_forward
        return np.full(len(shard.tp), 1e-6 * stack.host_layer_us * (0.5 if alone else 1.0))
    ahead, waiting = (
        sum(float(getattr(stack, name)) for name in host_constants(problem, kind, counts)) for counts in (False, True)
    )
    overlaps = shard.expert_overlap & (stack.routing_overlap > 0)  # elsewhere nothing runs beside the exchange
    counts, further = (shard.ep > 1) & ~overlaps, np.zeros(len(shard.tp))
    if problem.model.moe is not None and not problem.spec.training.moe_grouped_gemm:
        further = np.maximum(1.0, problem.model.moe.experts / shard.ep) - 1.0
    return np.asarray(1e-6 * (np.where(counts, waiting, ahead) + 0.5 * stack.host_layer_us * further))


def chunk_seconds(problem: Problem, vpp: Ints, expert_overlap: Bools) -> Floats:
    """What the host takes for a model chunk and microbatch, both passes, beside its layers.

    Where experts' all-to-alls are overlapped between chunks, the host launches the layers of one chunk in parts between
    those of another; parts that graphs replay halve that.
    """
    stack, scope = problem.stack, problem.cuda_graph
    if scope == "full":
        return np.zeros(len(vpp))
    turns = np.where((vpp > 1) & expert_overlap, 2.0 * stack.host_expert_chunk_us, 0.0)
    return np.asarray(1e-6 * (stack.microbatch_overhead_us + turns * (0.5 if scope == "te" else 1.0)))


def host_constants(problem: Problem, kind: LayerKind, exchanges: bool) -> tuple[str, ...]:
    """The stack's constants whose sum the host takes for a pass over a layer of that kind.

    `exchanges`: its experts are on several ranks, and nothing is overlapped with their all-to-alls. The dispatcher that
    sends a copy for each expert then has the host wait for their numbers in every layer. What the host does before it
    waits is done while the device computes, so that replaying it saves nothing; what comes after no graph of parts has.
    """
    if not kind.experts:
        return ("host_layer_us",)
    if exchanges and not problem.copies_once:
        return ("host_expert_layer_us", "host_all_to_all_us")
    return ("host_expert_layer_te_us" if problem.cuda_graph == "te" else "host_expert_layer_us",)


def whole_pass(kind: LayerKind, device_s: Floats, host_s: Floats) -> Floats:
    """Seconds of one pass over a layer by what device and host take for it.

    The host runs ahead of the device, and a dense layer takes as long as the slower of the two. With experts the two
    wait for each other more than once in a pass: where they are close both are felt (a norm of the fourth power).
    """
    if not kind.experts:
        return np.maximum(device_s, host_s)
    return np.asarray((device_s**4 + host_s**4) ** 0.25)


def mean_pass(kind: LayerKind, layer: LayerSeconds) -> Floats:
    """Seconds of a pass over a layer, forward or backward, in the mean, without communication."""
    both = (whole_pass(kind, device_s, layer.host) for device_s in (layer.forward, layer.backward))
    return np.asarray(sum(both) / 2)


_CORE = "attention"


def _mixer_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> tuple[Floats, ...]:
    """What mixes tokens, norms and residuals: forward, backward, and attention's core, if any, within forward."""
    operators = _mixer(problem, chip, shard, kind)
    core = (each.passes[0] for each in operators if each.name == _CORE)
    return *together(operators), next(core, np.zeros(len(shard.tp)))


def _mixer(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> list[Operator]:
    problem = problem_of(problem, kind)
    device, tokens = ChipSpeeds(problem, chip), shard.tokens(problem.sequence)
    outside = _outside_feed_forward(problem, shard, tokens, kind)
    if not kind.attends:
        return _recurrent(problem, device, shard, kind, outside)
    made_of = mixer_gemms(problem.model, shard, kind)
    flash = ("attention_forward", "attention_backward", *attention_constants(problem, chip))
    core = flash if shard.flash_attention.all() else (device.gemm_efficiency, "memory", "score_traffic")
    return [
        *part_operators(problem, device, made_of, tokens, outside),
        Operator(_CORE, _attention(problem, device, shard, tokens, kind), core),
        Operator("context-parallel sums", _context_traffic(problem, device, shard, tokens), ("memory",)),
        *_adapters(problem, device, shard, kind, "attention"),
        *_indexer(problem, device, shard.ulysses * tokens, kind),
    ]


def _indexer(problem: Problem, device: ChipSpeeds, tokens: Floats, kind: LayerKind) -> list[Operator]:
    """Scores of all keys, of which the most are selected: forward writes them in fp32 and reads them once more.
    `tokens` are those of all ranks that exchange heads, each of which scores for all.

    Its products run as fast as attention's. What the indexer is trained towards is not counted: that depends on a loss
    that the architecture does not tell.
    """
    indexer, stack = problem.model.attention.indexer, problem.stack
    if indexer is None or not kind.scores:
        return []
    keys = scored_keys(kind, problem.sequence, stack.causal_fraction)
    flops = 2.0 * tokens * keys * indexer.heads * indexer.dim
    forward = flops / device.forward_attention_rate + device.stream(2 * 4.0 * tokens * keys, 2)
    backward = 2 * flops / device.backward_attention_rate + 2 * device.kernel_latency
    return [Operator("indexer", (forward, backward), ("attention_forward", "attention_backward", "memory"))]


def _recurrent(
    problem: Problem, device: ChipSpeeds, shard: Shard, kind: LayerKind, outside: list[Traffic]
) -> list[Operator]:
    """A mixer without attention, or none at all. Exchanges of heads for tokens copy all that they send."""
    tokens = shard.tokens(problem.sequence)
    if kind.mixer == "none":
        return part_operators(problem, device, [], tokens, outside)
    of, factor = recurrence(problem.model, shard, kind.mixer), problem.stack.scan_backward_flops_factor
    beside = Traffic("convolution, gates", of.streamed * tokens, of.kernels)
    once, launches = of.flops * tokens / device.scan_rate, of.launches * device.kernel_latency
    scan = (once + launches, factor * (once + launches))
    copied = device.stream(2.0 * problem.element_bytes * tokens * (sum(of.enters) + of.leaves), 3.0)
    copies = np.where(shard.cp > 1, copied, 0.0)
    return [
        *part_operators(problem, device, of.made_of, tokens, [*outside, beside]),
        Operator(of.name, scan, ("scan_speed", "scan_backward_flops_factor")),
        Operator("context-parallel sums", (copies, copies), ("memory",)),
    ]


def _block_seconds(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> tuple[Floats, ...]:
    """The feed-forward block or the experts: forward and backward."""
    return together(_block(problem, chip, shard, kind))


def _block(problem: Problem, chip: Chip, shard: Shard, kind: LayerKind) -> list[Operator]:
    device, tokens = ChipSpeeds(problem, chip), shard.tokens(problem.sequence)
    if not kind.feed_forward:
        none = np.zeros(len(shard.tp))
        return [Operator("activation function", (none, none), ())]
    fused = problem.spec.training.fused_gate_up
    made_of = gemms.block_gemms(problem.model, shard, kind, gemms.routed_load(problem), fused)
    inside = (_routing if kind.experts else _activation)(problem, shard, tokens)
    beside = _adapters(problem, device, shard, kind, "mlp")
    return [*part_operators(problem, device, made_of, tokens, inside), *beside]


def _adapters(problem: Problem, device: ChipSpeeds, shard: Shard, kind: LayerKind, block: Block) -> list[Operator]:
    """A block's adapters: GEMMs in 16 bits whatever the frozen layers are in, with all three products."""
    made_of, tokens = adapter_gemms(problem, shard, kind, block), shard.tokens(problem.sequence)
    if not made_of:
        return []
    once, back, rests_on = np.zeros(len(tokens)), np.zeros(len(tokens)), tuple[str, ...]()
    for gemm in made_of:
        m, (speed, slower) = tokens * gemm.rows, gemms.grouped_speed(problem, gemm) if gemm.grouped else (1.0, ())
        passes = (m, gemm.n, gemm.k), (m, gemm.k, gemm.n), (gemm.k, gemm.n, m)
        forward, *backward = (device.gemm(*sizes, gemm.count) / speed for sizes in passes)
        once, back, rests_on = once + forward, back + sum(backward), rests_on or slower
    traffic, each = adapter_traffic(problem, shard, kind, block), problem.element_bytes * tokens
    beside = (device.stream(each * elements, traffic.kernels) for elements in (traffic.forward, traffic.backward))
    return [
        Operator("adapters", (once + next(beside), back + next(beside)), (device.gemm_efficiency, "memory", *rests_on))
    ]


def part_seconds(
    problem: Problem, device: ChipSpeeds, made_of: list[Gemm], tokens: Floats, traffic: list[Traffic]
) -> tuple[Floats, ...]:
    """Forward and backward of some GEMMs and of the memory traffic beside them."""
    return together(part_operators(problem, device, made_of, tokens, traffic))


def part_operators(
    problem: Problem, device: ChipSpeeds, made_of: list[Gemm], tokens: Floats, traffic: list[Traffic]
) -> list[Operator]:
    """The same by operator."""
    backward = problem.stack.elementwise_backward_factor
    unfused = () if problem.fused_kernels else ("unfused_traffic_factor",)
    found = _gemms(problem, device, made_of, tokens)
    for each in traffic:
        seconds = stream(problem, device, each)
        again = seconds if each.moves_only or each.backward_only else backward * seconds
        seconds = 0.0 * seconds if each.backward_only else seconds
        scaled = () if each.constant is None else (each.constant,)
        found.append(Operator(each.name, (seconds, again), ("memory", *scaled, *unfused)))
    return found


def _gemms(problem: Problem, device: ChipSpeeds, made_of: list[Gemm], tokens: Floats) -> list[Operator]:
    """Backward is one GEMM for the input's gradient and one for the weight's, added up in fp32, unless it is frozen.

    Each operand that is not in 16 bits is cast where it is made, in both directions where a weight's gradient follows;
    a stack without a fused sum runs over the weights' gradients once more.
    """
    found: list[Operator] = []
    stack, frozen = problem.stack, problem.lora is not None
    for gemm in made_of:
        m = tokens * gemm.rows
        once = device.layer_gemm(m, gemm.n, gemm.k, gemm.count)
        back = device.layer_gemm(m, gemm.k, gemm.n, gemm.count)
        if not frozen:
            back = back + device.layer_gemm(gemm.k, gemm.n, m, gemm.count, summed=True)
        rests_on: tuple[str, ...] = (device.layer_gemm_efficiency,)
        if gemm.grouped:
            speed, slower = gemms.grouped_speed(problem, gemm)
            once, back, rests_on = once / speed, back / speed, rests_on + slower
        found.append(Operator(gemm.name, (once, back), rests_on))
        if device.casts:
            cast = gemm.count * stack.fp8_cast_bytes * (stack.fp8_frozen_cast_share if frozen else 1.0) * m
            casts = [device.stream(cast * side, 1) for side in (gemm.k, gemm.n)]
            shares = ("fp8_frozen_cast_share",) if frozen else ()
            found.append(Operator("fp8 casts", (casts[0], casts[1]), ("memory", "fp8_cast_bytes", *shares)))
        if base := base_bytes(problem):  # read in the narrow form, written in 16 bits, for either pass
            moved = (base + problem.element_bytes) * gemm.count * gemm.n * gemm.k
            found.append(Operator("weights to 16 bits", 2 * (device.stream(moved, 1),), ("memory",)))
        if (summed := problem.gradient_sum_bytes(gemm.grouped)) and not frozen:
            sums = summed * gemm.count * gemm.n * gemm.k / device.memory_rate
            found.append(Operator("sums of gradients", (0 * sums, sums), ("memory", "gradient_sum_bytes")))
    return found


def _attention(
    problem: Problem, device: ChipSpeeds, shard: Shard, tokens: Floats, kind: LayerKind
) -> tuple[Floats, Floats]:
    """Attention's core. Context parallelism leaves each device its share of the whole sequence's pairs.

    Triangle attention computes a share of them without a flash kernel, in as many launches as it has row blocks, and
    copies the keys and values of each.
    """
    model, stack = problem.model, problem.stack
    heads = model.heads / shard.tp.astype(np.float64)
    keys, values = gemms.core_widths(model)
    flops = 2.0 * tokens * problem.sequence * (keys + values) * heads
    kernel = device.kernel_latency
    rate = stack.sparse_attention_speed if kind.selects else 1.0
    visible = flops * computed_share(problem, kind) / rate
    flash_forward = visible / device.forward_attention_rate + kernel
    flash_backward = visible * stack.attention_backward_flops_factor / device.backward_attention_rate + 2 * kernel
    # Unfused: two full GEMMs forward and four backward, which read and write the score matrix themselves; beside
    # them softmax reads and writes it (backward: reads two, writes one), and so does dropout.
    scores = heads * tokens * problem.sequence * problem.element_bytes
    dropout = problem.spec.training.dropout
    depth = np.full_like(heads, problem.sequence)
    width = np.full_like(heads, keys)
    batch = heads * shard.mbs
    one = device.gemm(depth, depth, width, batch) + device.gemm(depth, width, depth, batch)
    share, blocks = gemms.unmasked_blocks(problem)
    pairs = (one - 2 * kernel) * share / shard.cp + 2 * kernel * blocks
    traffic, launches = scores * stack.score_traffic * share, (1 + dropout) * blocks
    copies = 2 * problem.element_bytes * gemms.triangle_copies(problem, tokens) * heads * (keys + values)
    plain_forward = pairs + device.stream(traffic * (2 + 2 * dropout) + copies, launches)
    plain_backward = 2 * pairs + device.stream(traffic * (3 + 2 * dropout) + copies, launches)
    return (
        np.where(shard.flash_attention, flash_forward, plain_forward),
        np.where(shard.flash_attention, flash_backward, plain_backward),
    )


def _context_traffic(problem: Problem, device: ChipSpeeds, shard: Shard, tokens: Floats) -> tuple[Floats, Floats]:
    """Memory traffic that context parallelism adds to attention, forward and backward, in seconds.

    Around the ring each step's output is scaled and added to the whole (five passes over it), backward the gradients
    of queries, and of keys and values, are summed up (three each); an exchange of heads copies all four tensors into
    the order of the ranks. Source: Transformer Engine, context_parallel.py (flash_attn_fwd_out_correction; dq and dkv
    sums of AttnFuncWithCPAndKVP2P; the reorderings of flash_attn_a2a_communicate). Keys and values that are repeated
    before the exchange are read once and written for every query head.
    """
    model = problem.model
    keys, values = gemms.core_widths(model)
    heads, own = model.heads / shard.tp, np.maximum(1.0, model.kv_heads / shard.tp)
    repeated = own < shard.ulysses
    groups = np.where(repeated, heads, own)
    steps = np.where((shard.ring > 1) & ~shard.cp_gather, shard.ring, 0).astype(np.float64)
    passes = 2.0 * (heads + groups) + np.where(repeated, own + heads, 0.0)
    copied = np.where(shard.ulysses > 1, tokens * passes * (keys + values), 0.0)
    summed = 5 * steps * tokens * heads * values, 3 * steps * tokens * (heads * keys + groups * (keys + values))
    forward, backward = (device.stream(problem.element_bytes * (sums + copied), 3.0) for sums in summed)
    return np.where(shard.cp > 1, forward, 0.0), np.where(shard.cp > 1, backward, 0.0)


class Traffic(NamedTuple):
    """Elements that some kernels read and write, how many kernels there are, and the stack's constant for how often.

    `constant`: None where the elements are all that is read and written. `moves_only`: backward moves gradients as
    forward moves activations, and has no saved input to read beside them. `backward_only`: forward has no such kernel.
    """

    name: str
    elements: Floats
    kernels: float
    constant: Literal["elementwise_traffic", "norm_traffic"] | None = "elementwise_traffic"
    moves_only: bool = False
    backward_only: bool = False


def _outside_feed_forward(problem: Problem, shard: Shard, tokens: Floats, kind: LayerKind) -> list[Traffic]:
    """Norms, residuals, rotary embedding, and the gate on attention's output where there is one."""
    model, training = problem.model, problem.spec.training
    own, count = tokens / shard.sequence_split, norms(model, kind)
    normed = count * 2 * model.hidden * own
    # Each of several residual streams is read by its norm, to be joined, and to be mixed with the others, and written.
    streams = model.residual_streams
    passes = 3 if streams == 1 else 4 * streams + 2
    additions = kind.branches or 1
    residuals = additions * (passes + training.dropout) * model.hidden * own
    outside = Traffic("norms and residuals", normed + residuals, count + 1.5 * additions, "norm_traffic")
    if not kind.attends:
        return [outside]
    heads = (model.heads + model.kv_heads) / shard.tp.astype(np.float64)
    rotary = 2 * heads * model.head_dim * tokens if model.position == "rope" else np.zeros_like(tokens)
    gated = 3 * model.attention.output_gate * model.heads * gemms.core_widths(model)[1] / shard.tp * tokens
    return [
        outside,
        Traffic("rotary embedding, gate", rotary + gated, model.attention.output_gate),
    ]


def _activation(problem: Problem, shard: Shard, tokens: Floats) -> list[Traffic]:
    model = problem.model
    return [Traffic("activation function", (3 if model.gated_mlp else 2) * model.ffn / shard.tp * tokens, 1)]


def _routing(problem: Problem, shard: Shard, tokens: Floats) -> list[Traffic]:
    """Experts' activation functions, and tokens copied into the experts' order and back.

    Each copy's backward is the other one's forward (Transformer Engine, pytorch/permutation.py). Where the products of
    experts compute the activation as they write their results, only its saved input is read once more, backward; casts
    are counted with the products.
    """
    model, moe = problem.model, problem.model.moe
    assert moe is not None
    gates = 2 if model.gated_mlp else 1
    routed = gemms.routed_load(problem) * moe.computed * moe.expert_ffn  # whatever etp: wider parts of fewer tokens
    fused = np.where((shard.etp == 1) & problem.fused_experts, routed, 0.0)
    alone = (gates + 1) * (routed - fused + moe.shared_width) / shard.tp * tokens
    moved = reordered_rows(problem, shard) * model.expert_width * tokens / shard.sequence_split
    found = [Traffic("activation function", alone, 2), Traffic("permutation", moved, 8, None, moves_only=True)]
    if fused.any():
        read = gates * fused / shard.tp * tokens
        found.append(Traffic("activation function", read, 0, None, backward_only=True))
    return found


def stream(problem: Problem, device: ChipSpeeds, traffic: Traffic) -> Floats:
    """Seconds to read and write all elements; unfused kernels are more and go over them more often."""
    times: float = 1.0 if traffic.constant is None else getattr(problem.stack, traffic.constant)
    factor = 1.0 if problem.fused_kernels else problem.stack.unfused_traffic_factor
    return device.stream(traffic.elements * problem.element_bytes * times * factor, traffic.kernels * factor)


def end_seconds(problem: Problem, chip: Chip, shard: Shard) -> EndSeconds:
    """Embedding on the first stage; final norm, logits and loss on the last; forward plus backward."""
    made_of = end_operators(problem, chip, shard)
    (embedding,), (head,), (module,) = (together(each) for each in (made_of.embedding, made_of.head, made_of.module))
    return EndSeconds(embedding, head, module)


@dataclass(frozen=True)
class EndOperators:
    """`EndSeconds` by operator, forward and backward in one number."""

    embedding: list[Operator]
    head: list[Operator]
    module: list[Operator]


def end_operators(problem: Problem, chip: Chip, shard: Shard) -> EndOperators:
    """What `end_seconds` adds up.

    A module of multi-token prediction looks its tokens up, has norms of these, of the hidden states and of its result,
    joins the first two in one GEMM, and ends in logits and a loss of its own (Megatron-LM
    core/transformer/multi_token_prediction.py).
    """
    device, model, stack = ChipSpeeds(problem, chip), problem.model, problem.stack
    tokens = shard.tokens(problem.sequence)
    vocab = padded_vocabulary(model.vocab, shard.tp) / shard.tp.astype(np.float64)
    hidden, gemm = np.full_like(tokens, model.hidden), device.gemm
    passes = 1 if problem.lora else 2  # a frozen table has no gradient
    table = 2 * passes * tokens * model.hidden * problem.element_bytes  # rows read and written
    logits = gemm(tokens, vocab, hidden) + gemm(tokens, hidden, vocab)
    if problem.lora is None:
        logits = logits + gemm(hidden, vocab, tokens)
    loss = device.stream(stack.logits_traffic_bytes * tokens * vocab, 8)
    norm = device.stream(6 * problem.element_bytes * tokens * model.hidden / shard.sequence_split, 2)
    embedding = Operator("embedding", (device.stream(table, 2 * passes),), ("memory",))
    head = [
        Operator("head", (logits,), (device.gemm_efficiency,)),
        Operator("loss", (loss,), ("memory", "logits_traffic_bytes")),
    ]
    join = _gemms(problem, device, [Gemm("mtp join", hidden / shard.tp, 2 * hidden)], tokens)
    joined = [replace(each, passes=(add(*each.passes),)) for each in join]
    norms = Operator("norms and residuals", (3 * norm,), ("memory",))
    return EndOperators(
        embedding=[embedding],
        head=[*head, replace(norms, passes=(norm,))],
        module=[embedding, norms, *joined, *head],
    )
