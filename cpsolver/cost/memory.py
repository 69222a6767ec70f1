"""Bytes that a pipeline stage needs on each device: states, activations in flight, buffers. Rounded up, never down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np

from cpsolver.cost.adapters import adapter_bytes, layer_adapter_parameters, widest_result
from cpsolver.cost.comm import checkpoint_split
from cpsolver.cost.gemms import (
    copies_sent,
    core_kv_heads,
    core_widths,
    routed_load,
    sent_widths,
    triangle_copies,
    unmasked_blocks,
)
from cpsolver.cost.kinds import LayerKind, examples, kind_shares, norms, of_module, problem_of
from cpsolver.cost.modules import freed_bytes
from cpsolver.cost.recurrence import held_whole, mixer_gemms, recurrence
from cpsolver.cost.routing import gathered_tokens
from cpsolver.cost.selection import saved_elements
from cpsolver.cost.shard import Bools, Candidates, Floats, Ints, Shard, padded_vocabulary
from cpsolver.cost.states import base_bytes
from cpsolver.cost.stored import Stored
from cpsolver.plans.strategy import RecomputeKind
from cpsolver.problem.problem import Problem
from models_zoo import Architecture
from models_zoo.params import (
    embedding_parameters,
    encoder_parameters,
    final_norm_parameters,
    final_streams_parameters,
    layer_parameters,
    projector_parameters,
)


@dataclass(frozen=True)
class LayerBytes:
    """What one layer of one kind keeps per microbatch on one device, in bytes; arrays with one entry a candidate.

    full: everything kept for the backward pass. freed: what each of MODULES does not keep of it when it is recomputed,
    (MODULES, n). checkpoint: only the layer's input, if that does not wait on the host. buffer: gradients, of weights
    too, gathered inputs, and what context-parallel ranks communicate, that live while one layer runs backward.
    """

    full: Floats
    freed: Floats
    checkpoint: Floats
    buffer: Floats


@dataclass(frozen=True)
class StageParameters:
    """Parameters that one device holds.

    `layer` and `experts`: of the mean layer, without routed experts and of these. `kind_layer` and `kind_experts`, of
    shape (kinds, rows): what a layer of that kind has more. `first`, `last` and `last_experts`: of what stands on the
    first and the last stage beside their layers, multi-token prediction included. `encoder` and `frozen`: of the
    encoder of images on the first stage, what is trained and what is not; or, of an optimizer that takes matrices
    whole, by how much buffers are longer there.
    """

    layer: Floats
    experts: Floats
    kind_layer: Floats
    kind_experts: Floats
    first: Floats
    last: Floats
    last_experts: Floats
    encoder: Floats
    frozen: Floats


@dataclass(frozen=True)
class StageBytes:
    """Memory that one stage needs on one device in bytes, by what it is for; `total` is their sum.

    `fragments`: what the caching allocator cannot use between what is allocated. `framework`: device context, loaded
    kernels, communicators. `cached` is held beyond the need, by the allocator and the libraries, while there is room:
    it is no part of `total`, but meters show it.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    fragments: float
    framework: float
    cached: float = 0.0

    @property
    def allocated(self) -> float:
        """The framework's own count of what its tensors take."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.buffers

    @property
    def total(self) -> float:
        """All that must fit on the device."""
        return self.allocated + self.fragments + self.framework

    @property
    def device(self) -> float:
        """What the device's driver shows while there is room."""
        return self.total + self.cached


def layer_bytes(problem: Problem, shard: Shard, kind: LayerKind) -> LayerBytes:
    """What a layer of that kind keeps. Of several blocks one runs backward at a time, beside the gradient of what the
    others added to the layer's end."""
    if not kind.made_of:
        return _block_bytes(problem, shard, kind)
    each = [(count, _block_bytes(problem, shard, part)) for part, count in kind.made_of]
    return LayerBytes(
        full=reduce(add, (count * of.full for count, of in each)),
        freed=reduce(add, (count * of.freed for count, of in each)),
        checkpoint=each[0][1].checkpoint,
        buffer=np.max([of.buffer for _, of in each], axis=0)
        + _input_bytes(problem) * shard.tokens(problem.sequence) / shard.sequence_split,
    )


def _block_bytes(problem: Problem, shard: Shard, kind: LayerKind) -> LayerBytes:
    """Activation bytes of a layer, tensor by tensor (the count of arXiv:2205.05198, for any widths and kernels).

    Kept: inputs of the norms and of the GEMMs after them, dropout masks (1 byte), q, k, v, attention's output,
    feed-forward input and activation output. Frozen layers keep no input of their GEMMs but what other operators or
    adapters need (Transformer Engine d0067d0, pytorch/module/linear.py: backward_needs_input).
    Without flash attention the softmax output (and, with dropout, its mask
    and result) of every pair of tokens too, and keys and values for every head. Experts keep their inputs once for each
    expert that a token visits.
    """
    problem = problem_of(problem, kind)
    model, dropout = problem.model, problem.spec.training.dropout
    tokens = shard.tokens(problem.sequence)
    own = tokens / shard.sequence_split
    heads = model.heads / shard.tp.astype(np.float64)
    streams = model.residual_streams * (model.residual_streams > 1)  # what is joined before each block
    normed = kind.branches if problem.lora is None else int(kind.experts and kind.branches > 0)
    inputs = problem.element_bytes * (norms(model, kind) + normed + kind.branches * streams) * model.hidden * own
    masks = kind.branches * dropout * model.hidden * own
    share, wide = unmasked_blocks(problem)[0], sum(core_widths(model))
    scores = ((1 + dropout) * problem.element_bytes + dropout) * heads * tokens * problem.sequence * share
    copies = triangle_copies(problem, tokens) * heads * wide + tokens * _kv_copies(problem, shard)
    scores = scores + problem.element_bytes * copies
    core = np.where(shard.flash_attention, 4 * heads * tokens, scores) * kind.attends
    inside, fed = _feed_forward_elements(problem, shard, kind)
    fed_bytes = problem.element_bytes * tokens * fed + adapter_bytes(problem, shard, kind, "mlp")
    mixed = problem.element_bytes * tokens * _mixer_elements(problem, shard, kind)
    rest = inputs + masks + mixed + fed_bytes + adapter_bytes(problem, shard, kind, "attention")
    rest = rest + _upcast_bytes(problem, kind) * model.hidden * own
    gathered = np.where(shard.sequence_parallel, problem.element_bytes * model.hidden * tokens, 0.0)
    gradients = (
        problem.stack.backward_buffer_share * problem.element_bytes * (2 * inside * tokens + 2 * model.hidden * own)
    )
    weights: Floats | float = 0.0
    results = problem.element_bytes * tokens * widest_result(problem, shard, kind)
    if kind.dense and (problem.lora is None or problem.lora.quantized_base):  # gradients, or weights in 16 bits
        weights = problem.element_bytes * (3 if model.gated_mlp else 2) * model.hidden * model.ffn / shard.tp
    # Backward through unfused attention holds the gradients of dropout's output, of the softmax and of the scores.
    squares = 3 * problem.element_bytes * heads * tokens * problem.sequence * share * kind.attends
    pairs = np.where(shard.flash_attention, 0.0, squares)
    return LayerBytes(
        full=rest + core,
        # A flash kernel keeps no scores: recomputing attention's core saves its statistics at most.
        freed=freed_bytes(problem, shard, kind, core, fed_bytes),
        checkpoint=_checkpoint_bytes(problem, shard),
        buffer=gradients + gathered + weights + results + pairs + _exchanged_bytes(problem, shard, kind),
    )


def _upcast_bytes(problem: Problem, kind: LayerKind) -> float:
    """What norms of one operator after another keep of each value beside its 16-bit copies: an RMS norm its input in
    fp32, a layer norm so in place of the 16-bit one (transformers 5.24, LlamaRMSNorm; PyTorch's layer_norm, autocast).
    """
    if not problem.stack.eager_layers or problem.element_bytes > 2:
        return 0.0
    return norms(problem.model, kind) * (4.0 if problem.model.norm == "rmsnorm" else 2.0)


def _input_bytes(problem: Problem) -> float:
    """Bytes of one token where it goes into a layer."""
    return problem.element_bytes * problem.model.residual_streams * problem.model.hidden


def _checkpoint_bytes(problem: Problem, shard: Shard) -> Floats:
    """What a recomputed layer keeps on the device."""
    split = checkpoint_split(problem, shard)
    kept = 0.0 if problem.spec.training.cpu_checkpointing else _input_bytes(problem)
    return np.asarray(kept * shard.tokens(problem.sequence) / split)


def _mixer_elements(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """Elements a token that attention keeps, or what stands for it."""
    if kind.attends and (kind.selects or problem.model.attention.kind == "csa"):
        return saved_elements(problem.model, shard, kind)
    if kind.attends:
        return _attention_elements(problem, shard)
    return np.zeros(len(shard.tp)) if kind.mixer == "none" else recurrence(problem.model, shard, kind.mixer).kept


def _attention_elements(problem: Problem, shard: Shard) -> Floats:
    """Elements a token that attention keeps: queries, keys, values, output, and the low-rank inputs of these."""
    model, attention = problem.model, problem.model.attention
    heads = model.heads / shard.tp.astype(np.float64)
    keys, values = core_widths(model)
    gate = 2 * attention.output_gate * heads * values  # its input, and the gated output beside the plain one
    if attention.kind != "mla":
        kv_heads = core_kv_heads(model, shard) * shard.ulysses  # repeated where exchanging heads needs more of them
        return np.asarray((2 * heads + 2 * kv_heads) * model.head_dim + gate)
    ranks = 2 * (attention.q_lora or 0) + 2 * (attention.kv_lora or 0) + (attention.qk_rope or 0)
    return np.asarray(2 * heads * (keys + values) + ranks + gate)


def _kv_copies(problem: Problem, shard: Shard) -> Floats:
    """Elements a token of keys and values copied for the heads that share them, beside what is kept of them anyway.

    Attention without a fused kernel keeps them so: megatron/core/transformer/dot_product_attention.py,
    repeat_interleave; a real layer's saved tensors show the same (apss-cp profile).
    """
    model = problem.model
    if model.attention.kind == "mla":
        return np.zeros(len(shard.tp))
    heads = model.heads / shard.tp.astype(np.float64)
    return np.asarray(2 * (heads - core_kv_heads(model, shard) * shard.ulysses) * model.head_dim)


def _exchanged_bytes(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """What context parallelism and experts' ranks hold besides while a layer of that kind is at work."""
    gathered = _gathered_bytes(problem, shard, kind)
    if kind.attends:
        return _context_parallel_bytes(problem, shard) + gathered
    if kind.mixer == "none":
        return gathered
    of = recurrence(problem.model, shard, kind.mixer)
    exchanged = problem.element_bytes * shard.tokens(problem.sequence) * (sum(of.enters) + of.leaves)
    return np.where(shard.cp > 1, exchanged, 0.0) + gathered


def _gathered_bytes(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """What a layer at work holds besides where all tokens are gathered for its experts: these in a buffer that every
    layer uses, and sums of as many results, or their gradients (Megatron-LM d98e8a6, core/transformer/moe/
    token_dispatcher.py, MoEAllGatherTokenDispatcher, use_global_buffer)."""
    if not kind.experts or not problem.gathers_tokens:
        return np.zeros(len(shard.tp))
    every = gathered_tokens(problem, shard) * problem.model.expert_width * problem.element_bytes
    return np.where(shard.ep * shard.etp > 1, 2 * every, 0.0)


def _context_parallel_bytes(problem: Problem, shard: Shard) -> Floats:
    """What context parallelism holds beside what attention keeps, while one layer is at work.

    Gathering: the keys and values of the whole sequence. A ring: the block at work and the one that arrives. Heads
    exchanged for tokens: one more copy of queries, keys, values and output.
    """
    wide = sum(core_widths(problem.model))
    heads = problem.model.heads / shard.tp.astype(np.float64)
    kv_heads = core_kv_heads(problem.model, shard)
    whole = problem.element_bytes * kv_heads * sum(sent_widths(problem.model)) * shard.mbs * problem.sequence
    around = np.where(shard.cp_gather, whole, 2 * whole / shard.ring)
    copies = problem.element_bytes * shard.tokens(problem.sequence) * wide * (heads + kv_heads * shard.ulysses)
    return np.where(shard.ring > 1, around, 0.0) + np.where(shard.ulysses > 1, copies, 0.0)


def _feed_forward_elements(problem: Problem, shard: Shard, kind: LayerKind) -> tuple[Floats, Floats]:
    """Elements a token of the widest GEMM's output, and all that a feed-forward block keeps beside its input."""
    model, tp = problem.model, shard.tp.astype(np.float64)
    gates = 2 if model.gated_mlp else 1
    kept = gates + problem.stack.eager_layers * (gates - 1)  # the activation function's result, before it is gated
    if not kind.feed_forward:
        return _widest_of_mixer(problem, shard, kind), np.zeros(len(shard.tp))
    if not kind.experts:
        return gates * model.ffn / tp, (kept + (problem.lora is None)) * model.ffn / tp
    moe, load = model.moe, routed_load(problem)
    assert moe is not None
    routed = load * moe.computed * moe.expert_ffn
    width, weighted = routed + moe.shared_width, problem.stack.kept_weighted_activations * routed / tp
    # Tokens that an expert's ranks have gathered, in the experts' order, and results of a device's own tokens.
    gathered, results = load * shard.etp / tp, problem.stack.kept_expert_outputs / shard.sequence_split
    latent = 2 * (moe.latent or 0) / shard.sequence_split  # what is sent, and what comes back
    sent = copies_sent(problem) * model.expert_width * (gathered + results) + latent
    return gates * width / tp, (kept + 1) * width / tp + weighted + sent


def _widest_of_mixer(problem: Problem, shard: Shard, kind: LayerKind) -> Floats:
    """Elements a token of the widest GEMM's result in a layer without feed-forward block, but for what is added to the
    residual."""
    results = [each.n for each in mixer_gemms(problem.model, shard, kind) if not each.name.endswith("output")]
    return np.asarray(np.max([np.broadcast_to(each, shard.tp.shape) for each in results], axis=0))


def stage_parameters(problem: Problem, rows: Candidates) -> StageParameters:
    """Parameters per device. With tied embeddings and several stages the last one holds a copy of the table."""
    model = problem.model
    layers, experts = (
        np.stack(parts) for parts in zip(*(_layer_parameters(model, rows, i) for i in examples(model)), strict=True)
    )
    share = np.array(kind_shares(model))[:, None]
    layer, routed = (share * layers).sum(axis=0), (share * experts).sum(axis=0)
    table = padded_vocabulary(model.vocab, rows.tp) / rows.tp * model.hidden
    first = table + (embedding_parameters(model) - model.vocab * model.hidden)
    own_head = (rows.pp > 1) | (not model.tied_embeddings)
    last = np.where(own_head, table, 0.0) + final_norm_parameters(model) + final_streams_parameters(model)
    module, module_experts = _module_parameters(model, rows, layers, experts)
    if model.mtp_layers and not model.tied_embeddings:  # its tokens' embeddings are looked up on the last stage too
        last = last + np.where((rows.pp > 1) & ~rows.one_table, first, 0.0)
    return StageParameters(
        layer=layer,
        experts=routed,
        kind_layer=layers - layer,
        kind_experts=experts - routed,
        first=first,
        last=last + model.mtp_weights * module,
        last_experts=model.mtp_weights * module_experts,
        **_encoder_parameters(problem, rows),
    )


def trained_parameters(problem: Problem, rows: Candidates) -> StageParameters:
    """Of what is trained: all that a device holds, or the adapters, of whose matrices each rank has its share; of those
    that experts have of their own, its experts'."""
    if problem.lora is None:
        return stage_parameters(problem, rows)
    experts_ranks = np.ones(len(rows)) if problem.lora.share_expert_adapters else rows.ep
    layers, routed = (
        np.array(layer_adapter_parameters(problem, of_experts), dtype=np.float64)[:, None] / ranks
        for of_experts, ranks in ((False, rows.tp), (True, experts_ranks))
    )
    layer, experts, none = _mean_layer(problem, layers), _mean_layer(problem, routed), np.zeros(len(rows))
    return StageParameters(layer, experts, layers - layer, routed - experts, *5 * (none,))


def trained_and_held(problem: Problem, rows: Candidates, each: float) -> tuple[StageParameters, StageParameters]:
    """`trained_parameters` and `weighed_parameters`, counted once where they are the same."""
    held = weighed_parameters(problem, rows, each)
    return (held if problem.lora is None else trained_parameters(problem, rows)), held


def weighed_parameters(problem: Problem, rows: Candidates, each: float) -> StageParameters:
    """All that a device holds, counted in trained parameters of `each` bytes a weight: trained ones, and as many more
    as frozen weights take the bytes of. Linear layers may be in 4 bits, all else is as it is without adapters."""
    held = stage_parameters(problem, rows)
    if problem.lora is None:
        return held
    adapters, narrow = trained_parameters(problem, rows), base_bytes(problem) / each or 1.0
    layers = narrow * (held.layer + held.kind_layer) + (1 - narrow) * _not_linear(problem)[:, None]
    layers = layers + adapters.layer + adapters.kind_layer
    layer = _mean_layer(problem, layers)
    experts = {name: narrow * getattr(held, name) + getattr(adapters, name) for name in ("experts", "kind_experts")}
    return replace(held, layer=layer, kind_layer=layers - layer, **experts)


def _not_linear(problem: Problem) -> Floats:
    """Parameters of a layer of each kind that are in no linear layer: norms."""
    counted = [layer_parameters(problem.model, index) for index in examples(problem.model)]
    return np.array([each.norms + each.attention_norms for each in counted], dtype=np.float64)


def _mean_layer(problem: Problem, of_kinds: Floats) -> Floats:
    """The mean over the model's layers of values (kinds, rows)."""
    return np.asarray((np.array(kind_shares(problem.model))[:, None] * of_kinds).sum(axis=0))


def _encoder_parameters(problem: Problem, rows: Candidates) -> dict[str, Floats]:
    """Of the encoder of images: layers and projectors are split over tp; patches, positions, norms and biases after
    sums are whole on every rank, and so may be all of it."""
    model, none = problem.model, np.zeros(len(rows))
    alone, vision, images = problem.encoder, model.vision, problem.spec.training.images
    if alone is None or vision is None or images is None:
        return {"encoder": none, "frozen": none}
    if problem.whole_encoder:
        own, projected = none + encoder_parameters(model), none + projector_parameters(model)
        return {"encoder": projected + own * images.trained, "frozen": own * (not images.trained)}
    of_layers = vision.layers * _layer_parameters(alone.model, rows, 0)[0]
    whole = encoder_parameters(model) - vision.layers * layer_parameters(alone.model).total
    own, projectors = of_layers + whole, projector_parameters(model)
    width, count = vision.projector or model.hidden, 1 + vision.deepstack
    split = count * width * (vision.joined + model.hidden + 1)
    projected = split / rows.tp + (projectors - split)
    return {"encoder": projected + own * images.trained, "frozen": own * (not images.trained)}


def _module_parameters(model: Architecture, rows: Candidates, layers: Floats, experts: Floats) -> tuple[Floats, Floats]:
    """Of a multi-token prediction module, without routed experts and of these: its layers, three norms, and the GEMM
    that joins hidden states and embeddings (Megatron-LM multi_token_prediction.py)."""
    joined = 2.0 * model.hidden**2 / rows.tp
    return of_module(model, layers) + joined + 3 * final_norm_parameters(model), of_module(model, experts)


def _layer_parameters(model: Architecture, rows: Candidates, index: int) -> tuple[Floats, Floats]:
    """Parameters of the layer of that index that a device holds: without routed experts, and of these.

    Key-value heads fewer than tp are split all the same, and their results gathered (Megatron-LM core/transformer/
    attention.py, get_query_key_value_tensors).
    """
    tp, counted = rows.tp.astype(np.float64), layer_parameters(model, index)
    split = counted.attention_qkv + counted.attention_out + counted.mixer + counted.mlp + counted.shared_experts
    beside = counted.norms + counted.streams + counted.attention_norms + counted.selection + counted.router
    whole = _held_whole(model, index)
    sinks = model.heads if model.attention.sinks and counted.attention else 0  # one for each head, split with them
    layer = (split - whole + sinks) / tp + (whole + beside - sinks)
    return layer, counted.experts / (rows.etp * rows.ep)


def _held_whole(model: Architecture, index: int) -> int:
    """Of a layer's weights, those that every tensor-parallel rank holds whole: projections to low ranks, biases after
    a sum over the ranks, and the gate of shared experts."""
    attention, moe = model.attention, model.moe
    whole = held_whole(model, model.mixer(index))
    if model.mixer(index) == "attention":
        whole += model.hidden * model.bias_attention_out
        if attention.kind == "mla":
            whole += model.hidden * ((attention.q_lora or 0) + (attention.kv_lora or 0) + (attention.qk_rope or 0))
        elif attention.kind == "csa":
            whole += model.hidden * ((attention.q_lora or 0) + model.head_dim)
    if model.has_experts(index) and moe is not None:
        return whole + model.hidden * (moe.shared_experts * model.bias_mlp + moe.shared_gate)
    return whole + model.hidden * (model.bias_mlp and model.has_feed_forward(index))


def module_bytes(problem: Problem, rows: Candidates, layers: Floats) -> Floats:
    """What the modules of multi-token prediction keep of the one microbatch that the last stage works on.

    Each its layers (`layers`: bytes of one module's), its norms' inputs, the joined input and result of its GEMM, and
    logits, whose loss has no gradient yet while the head's runs backward.
    """
    tokens = rows.shard.tokens(problem.sequence)
    joined = 5 * problem.element_bytes * problem.model.hidden * tokens / rows.shard.sequence_split
    waiting = problem.stack.waiting_logits_bytes * _logits(problem, rows)
    return np.asarray(problem.model.mtp_layers * (layers + joined + waiting))


def logits_bytes(problem: Problem, rows: Candidates) -> Floats:
    """Logits, their fp32 copy and gradient on the last stage; of all the vocabulary where the loss is not parallel."""
    return np.asarray(problem.stack.logits_bytes * _logits(problem, rows))


def held_logits_bytes(problem: Problem, rows: Candidates) -> Floats:
    """Logits of all microbatches, where a framework keeps what a pipeline gives until the step is over."""
    each = np.where(rows.pp > 1, problem.stack.pipeline_logits_bytes * rows.microbatches, 0.0)
    return np.asarray(each * _logits(problem, rows))


def _logits(problem: Problem, rows: Candidates) -> Floats:
    """How many logits of a microbatch a device of the last stage has."""
    shares = rows.tp if problem.stack.parallel_loss else 1
    return np.asarray(rows.shard.tokens(problem.sequence) * padded_vocabulary(problem.model.vocab, rows.tp) / shares)


def activation_bytes(
    layer: tuple[Stored, Stored, float],
    live: Ints,
    layers: Ints | Floats,
    kind: RecomputeKind,
    amount: Ints,
    replay: Floats | float,
    beside: Bools | bool = False,
) -> Floats:
    """Peak activation bytes of model chunks of equal length; all arrays broadcast against each other.

    Args:
        layer: what layers keep of a microbatch: in full, without modules that are recomputed, and each one's input.
        live: chunks' forward passes held at the stage's peak (`pipeline_events.peak_live_total`).
        layers: layers of each chunk.
        kind, amount: recomputation, and its number in each chunk (see `StageGroup.recompute_layers`).
        replay: bytes of the modules that are recomputed with kind "selective".
        beside: whether a forward runs beside a backward (`pipeline_events.runs_beside`): both have the layer at work.

    Returns:
        What is in flight, plus the unit that is being recomputed and the layer of the forward beside a backward.
    """
    full, selective, checkpoint = layer
    at_work = beside * (selective if kind == "selective" else full).most
    if kind == "uniform":
        unit = np.clip(amount, 1, layers)
        return np.asarray(live * -(-layers // unit) * checkpoint + full.of(unit) + at_work)
    if kind == "block":
        recomputed = np.minimum(amount, layers)
        held = live * (full.of(layers - recomputed) + recomputed * checkpoint)
        return np.asarray(held + np.where(amount > 0, full.most, 0.0) + at_work)
    if kind == "selective":
        return np.asarray(live * selective.of(layers) + replay + at_work)
    return np.asarray(live * full.of(layers) + at_work)
