"""What to measure for a model: the GEMMs of its layers' shards, attention, memory, links, and a real layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cpsolver.cost.gemms import Gemm, attention_gemms, block_gemms, core_widths
from cpsolver.cost.kinds import layer_kinds, model_of
from cpsolver.cost.recurrence import mixer_gemms
from cpsolver.cost.shard import Shard, padded_vocabulary
from cpsolver.doors.profile.settings import DeviceKind, Settings
from cpsolver.doors.profile.task import MeasurementTask
from cpsolver.inputs.language import later, say
from cpsolver.problem.problem import Problem
from models_zoo import special_layers

Precision = Literal["bf16", "fp16", "fp8"]
BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of an element; results of fp8 GEMMs are bf16."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
STREAMS = {"copy": 2, "add": 3, "scale": 2, "norm": 2, "gelu": 2}
"""Memory-bound kernels, with the number of tensors that each reads or writes."""
RECOMPUTED = (("flash", "none"), ("flash", "full"), ("unfused", "none"), ("unfused", "selective"), ("unfused", "full"))
"""Attention kernel and recomputation of the real layer. A flash kernel saves no scores, so it has none to recompute."""


@dataclass(frozen=True)
class MeasurementScope:
    """What the user wants measured: degrees, micro-batches, precisions, devices of a group. `quick`: fewer tasks."""

    tp: tuple[int, ...] = (1,)
    micro_batch: tuple[int, ...] = (1,)
    precisions: tuple[Precision, ...] = ("bf16",)
    devices: int = 1
    quick: bool = False


def tasks(problem: Problem, wanted: MeasurementScope, kind: DeviceKind, settings: Settings) -> list[MeasurementTask]:
    """All tasks, each once, the most useful first (see `MeasurementTask.rank`)."""
    all_tasks = [
        *_squares(wanted, settings),
        *_streams(kind, settings),
        MeasurementTask("launch", {"kernels": settings.launches}, "launch of a kernel", rank=0),
        *_attention(problem, wanted),
        *_host_link(kind, settings),
        *_layers(problem, wanted, settings),
        *_gemms(problem, wanted),
        *_collectives(wanted, kind, settings),
    ]
    by_key: dict[str, MeasurementTask] = {}
    for task in sorted(all_tasks, key=lambda task: task.rank):
        by_key.setdefault(task.key, task)
    return list(by_key.values())


def gemm_task(
    m: int, n: int, k: int, batch: int, precision: Precision, direction: str, what: str, rank: int
) -> MeasurementTask:
    """A GEMM of (m, k) and (k, n), or `batch` of them in one kernel."""
    times = f"{batch} x " if batch > 1 else ""
    size = {"m": m, "n": n, "k": k, "batch": batch, "precision": precision, "product": direction}
    bytes_ = batch * (BYTES[precision] * (m * k + k * n) + 2 * m * n)
    label = say("{precision} product {size} ({what})", precision=precision, size=f"{times}{m} x {n} x {k}", what=what)
    return MeasurementTask("gemm", size, label, flops=2.0 * batch * m * n * k, bytes=float(bytes_), rank=rank)


def _squares(wanted: MeasurementScope, settings: Settings) -> Iterator[MeasurementTask]:
    for n in settings.quick_squares if wanted.quick else settings.squares:
        for place, precision in enumerate(wanted.precisions):
            yield gemm_task(n, n, n, 1, precision, "forward", "square", 0 if place == 0 else 1)


def _gemms(problem: Problem, wanted: MeasurementScope) -> Iterator[MeasurementTask]:
    """Each GEMM of the model's layers and its head: forward, and backward for the input and for the weight."""
    for place, precision in enumerate(wanted.precisions):
        for tp in wanted.tp:
            for mbs in wanted.micro_batch:
                shard = Shard.of(tp, mbs, False, True)
                tokens = int(shard.tokens(problem.sequence)[0])
                rank = 2 if place == 0 and (tp, mbs) == (wanted.tp[0], wanted.micro_batch[0]) else 4
                for what, gemm in _named(problem, shard):
                    yield from _passes(tokens, gemm, precision, f"{what}, tp {tp}", rank)


def _named(problem: Problem, shard: Shard) -> Iterator[tuple[str, Gemm]]:
    model = problem.model
    usual = not special_layers(model)
    named_gemms = [("attention", gemm) for gemm in attention_gemms(model, shard)] if usual else []
    for kind in [part for whole in layer_kinds(model) for part, _ in whole.parts]:
        own, block = model_of(model, kind), "experts" if kind.experts else "feed-forward"
        named_gemms += [] if usual else [("mixer", gemm) for gemm in mixer_gemms(own, shard, kind)]
        named_gemms += [(block, gemm) for gemm in block_gemms(model, shard, kind)]
    vocab = padded_vocabulary(model.vocab, shard.tp) / shard.tp
    yield from named_gemms
    yield "head", Gemm("head", vocab, 0 * vocab + model.hidden)


def _passes(tokens: int, gemm: Gemm, precision: Precision, what: str, rank: int) -> Iterator[MeasurementTask]:
    rows, batch = (float(copies if isinstance(copies, float) else copies[0]) for copies in (gemm.rows, gemm.count))
    m, n, k = max(1, round(tokens * rows)), round(float(gemm.n[0])), round(float(gemm.k[0]))
    copies = round(batch)
    yield gemm_task(m, n, k, copies, precision, "forward", what, rank)
    yield gemm_task(
        m, k, n, copies, precision, "input_gradient", say("{what}, gradient of the input", what=what), rank + 1
    )
    yield gemm_task(
        k, n, m, copies, precision, "weight_gradient", say("{what}, gradient of the weight", what=what), rank + 1
    )


def _attention(problem: Problem, wanted: MeasurementScope) -> Iterator[MeasurementTask]:
    precision: Precision = "fp16" if wanted.precisions[0] == "fp16" else "bf16"
    lengths = [problem.sequence] if wanted.quick else [problem.sequence, problem.sequence // 2, problem.sequence * 2]
    for tp in wanted.tp:
        heads = max(1, problem.model.heads // tp)
        for place, sequence in enumerate(lengths):
            for mbs in wanted.micro_batch if place == 0 else (1,):
                rank = 0 if (tp, place, mbs) == (wanted.tp[0], 0, wanted.micro_batch[0]) else 3
                yield from attention_tasks(problem, precision, mbs, heads, sequence, rank)


def attention_tasks(
    problem: Problem, precision: Precision, batch: int, heads: int, sequence: int, rank: int
) -> Iterator[MeasurementTask]:
    """Causal attention of a shape, forward and backward, with as many heads of keys as of queries."""
    keys, values = core_widths(problem.model)
    stack = problem.stack
    flops = 2.0 * batch * heads * sequence**2 * (keys + values) * stack.causal_fraction
    held = 2.0 * 2 * batch * heads * sequence * (2 * keys + 2 * values)
    size = {"batch": batch, "heads": heads, "sequence": sequence, "keys": keys, "values": values}
    for kind, factor in ((later("forward"), 1.0), (later("backward"), float(stack.attention_backward_flops_factor))):
        label = say(
            "{precision} attention {kind}, {batch} x {heads} heads, {sequence} tokens",
            precision=precision,
            kind=say(kind),
            batch=batch,
            heads=heads,
            sequence=sequence,
        )
        every: dict[str, int | str] = {**size, "precision": precision}
        yield MeasurementTask(f"attention_{kind}", every, label, flops=factor * flops, bytes=held, rank=rank)


def _streams(kind: DeviceKind, settings: Settings) -> Iterator[MeasurementTask]:
    bytes_each = settings.stream_bytes[kind]
    for name, tensors in STREAMS.items():
        held, rank = float(bytes_each * (tensors + 1)), 0 if name == "copy" else 1
        yield MeasurementTask(
            "memory", {"kernel": name, "bytes": bytes_each}, say("memory: {name}", name=name), bytes=held, rank=rank
        )


def _host_link(kind: DeviceKind, settings: Settings) -> Iterator[MeasurementTask]:
    if kind == "cpu":
        return
    for direction in (later("to the device"), later("to the host")):
        count, label = settings.host_copy_bytes, say("host link: {direction}", direction=say(direction))
        yield MeasurementTask("host_link", {"direction": direction, "bytes": count}, label, bytes=float(count), rank=1)


def _layers(problem: Problem, wanted: MeasurementScope, settings: Settings) -> Iterator[MeasurementTask]:
    """The real layer at the length of the sequence, or at the largest length that can be run."""
    longest = problem.sequence
    lengths = [longest, *(length for length in settings.layer_tokens if length < longest)]
    for place, tokens in enumerate(lengths):
        forward = _layer_flops(problem, tokens)
        for attention, recompute in RECOMPUTED:
            size: dict[str, int | str] = {"tokens": tokens, "attention": attention, "recompute": recompute}
            label = say(
                "bytes of a layer, {attention} attention, recomputation {recompute}, {tokens} tokens",
                attention=attention,
                recompute=recompute,
                tokens=tokens,
            )
            held = _layer_bytes(problem, tokens, attention == "unfused")
            yield MeasurementTask("layer_bytes", size, label, forward, held, 1, f"bytes {attention} {recompute}")
        layers = settings.layers
        size = {"tokens": tokens, "layers": layers}
        label = say("{layers} layers forward and backward, {tokens} tokens", layers=layers, tokens=tokens)
        held = layers * _layer_bytes(problem, tokens, False)
        rank = 1 if place == 0 else 2
        yield MeasurementTask("layer_time", size, label, 3 * layers * forward, held, rank, "layer time")


def _layer_flops(problem: Problem, tokens: int) -> float:
    """FLOP of the forward pass of a dense layer."""
    model, whole = problem.model, Shard.of(1, 1, False, True)
    parts = [part for kind in layer_kinds(model) for part, _ in kind.parts]
    dense = [part for part in parts if not part.experts] or parts
    gemms = [*attention_gemms(model, whole), *block_gemms(model, whole, dense[0])]
    weights = sum(float((gemm.n * gemm.k * gemm.rows * gemm.count).sum()) for gemm in gemms)
    return 2.0 * tokens * (weights + model.heads * tokens * sum(core_widths(model)))


def _layer_bytes(problem: Problem, tokens: int, unfused: bool) -> float:
    """Weights with gradients, and some ten times what a layer saves. A safe limit for memory, not a prediction."""
    model = problem.model
    weights = 4.0 * model.hidden * (4 * model.hidden + 3 * model.ffn)
    pairs = 8.0 * model.heads * tokens**2 * unfused
    return weights + 20.0 * tokens * (8 * model.hidden + 3 * model.ffn) + pairs


def _collectives(wanted: MeasurementScope, kind: DeviceKind, settings: Settings) -> Iterator[MeasurementTask]:
    sizes = [n for n in range(2, wanted.devices) if wanted.devices % n == 0]
    payloads = settings.payload_bytes[kind]
    for group in [wanted.devices] if wanted.quick else [wanted.devices, *sizes]:
        if group < 2:
            continue
        for place, collective in enumerate(COLLECTIVES):
            for payload in payloads:
                size: dict[str, int | str] = {"collective": collective, "group": group, "payload": payload}
                label = say(
                    "{collective} of {payload:,} bytes over {group}",
                    collective=collective,
                    payload=payload,
                    group=group,
                )
                rank = 2 + (place > 0) + 2 * (group < wanted.devices)
                yield MeasurementTask("collective", size, label, bytes=2.0 * payload, rank=rank)


def tensor_parallel_sizes(heads: int, ffn: int, asked: Sequence[int]) -> tuple[int, ...]:
    """The sizes that divide heads and feed-forward width."""
    return tuple(tp for tp in asked if heads % tp == 0 and ffn % tp == 0)
