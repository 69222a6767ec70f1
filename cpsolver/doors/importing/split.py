"""How a script splits its layers over stages and chunks, by Megatron's flags and layouts and the lists of its forks."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.layer_kinds import pattern_length
from cpsolver.doors.importing.model import noop_layers
from cpsolver.inputs.language import later, say

_FIRST, _LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
_EMBEDDING, _LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
_LAYOUT, _LIST = "pipeline-model-parallel-layout", "num-layer-list"
_PER_CHUNK, _CHUNKS = "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"
_LISTS = (_LIST, "custom-pipeline-layers", "custom-virtual-pipeline-layers", "pipeline-num-transformer-layers")

_DIGITS = 4
"""Most digits of a repetition in a list of layers: no model has more layers, and a text cannot fill the memory."""


@dataclass(frozen=True)
class LayerSplit:
    """Layers of each stage and chunks of a stage (vpp). `refusals`: why no plan can express it."""

    layers: tuple[int, ...]
    vpp: int
    refusals: tuple[str, ...] = ()


def read_split(arguments: Arguments, pp: int) -> LayerSplit | None:
    """The split; None where it is wrong, with the reason in `arguments.troubles`."""
    total = arguments.number("num-layers") or pattern_length(arguments)
    if total is None:
        return None
    troubles_before = len(arguments.troubles)
    _exclusive(arguments)
    lists = [name for name in (_LAYOUT, *_LISTS) if arguments.has(name)]
    if lists:
        split = _listed(arguments, lists[0], total, pp)
    elif arguments.has(_FIRST) or arguments.has(_LAST):
        split = _ends(arguments, total, pp)
    else:
        split = _even(arguments, total, pp)
    if split is None or len(arguments.troubles) > troubles_before:
        return None
    if places_as_v(arguments):
        return _as_v(split, noop_layers(arguments))
    return _without_noops(split, noop_layers(arguments), arguments)


def places_as_v(arguments: Arguments) -> bool:
    """Whether stages are placed as a V, each with two chunks."""
    return arguments.text("schedules-method") == "dualpipev" or arguments.has("zero-bubble-v-schedule")


def _as_v(split: LayerSplit, noops: Sequence[int]) -> LayerSplit:
    """The same layers in a V's chunks: stage s has chunks s and 2 pp - 1 - s of 2 pp equal ones.

    Layers that do nothing make chunks shorter: both of a stage alike, as a plan counts them, and of the first stage the
    second one more.
    """
    pp, sizes, start = len(split.layers), set(split.layers), 0
    if split.vpp > 1 or len(sizes) > 1 or split.layers[0] % 2:
        refusal = say("stages placed as a V have two chunks of one length each, given by --num-layers alone")
        return LayerSplit(split.layers, 2, (*split.refusals, refusal))
    chunks = []
    for count in [split.layers[0] // 2] * (2 * pp):
        chunks.append(count - sum(start <= noop < start + count for noop in noops))
        start += count
    layers = tuple(chunks[stage] + chunks[2 * pp - 1 - stage] for stage in range(pp))
    refusals = [
        say("stage {stage} has a chunk without layers", stage=stage) for stage in range(pp) if layers[stage] < 2
    ]
    both = [(chunks[stage], chunks[2 * pp - 1 - stage]) for stage in range(pp)]
    unequal = both[0][0] < both[0][1] or any(first != second for first, second in both[1:])
    refusals += [say("--noop-layers make the two chunks of a stage unequal")] * unequal
    return LayerSplit(layers, 2, (*split.refusals, *refusals))


def _exclusive(arguments: Arguments) -> None:
    """Note arguments that Megatron and its forks refuse together."""
    groups = (
        ((_PER_CHUNK,), (_CHUNKS,)),
        ((_FIRST, _LAST), (_EMBEDDING, _LOSS)),
        ((_LAYOUT,), (_FIRST, _LAST, _EMBEDDING, _LOSS, _PER_CHUNK, _CHUNKS, *_LISTS)),
        ((_LIST,), (_PER_CHUNK, _CHUNKS, "noop-layers")),
        ((_FIRST, _LAST), (_PER_CHUNK,)),
    )
    for ones, others in groups:
        given = [name for name in ones if arguments.has(name)]
        excluded = [name for name in others if arguments.has(name)]
        if given and excluded:
            arguments.trouble(f"--{given[0]}", say("excludes --{excluded}: give one of them", excluded=excluded[0]))


def _chunks(arguments: Arguments, stage: int) -> int | None:
    """vpp, from either flag, for stages of so many layers."""
    if arguments.has(_CHUNKS):
        return arguments.number(_CHUNKS, 1)
    per = arguments.number(_PER_CHUNK)
    if per is None:
        return 1
    if stage % per:
        arguments.trouble(f"--{_PER_CHUNK}", say("does not divide the {stage} layers of a stage", stage=stage), per)
        return None
    return stage // per


def _even(arguments: Arguments, total: int, pp: int) -> LayerSplit | None:
    embedding, loss = int(arguments.has(_EMBEDDING)), int(arguments.has(_LOSS))
    if "embedding" in (arguments.text("pp-partition-method") or ""):
        # DeepSpeed's PipelineModule counts what the names fit: the embedding, and the tied one that is the head
        embedding, loss = 1, int(not arguments.has("untie-embeddings-and-output-weights"))
    counted = total + embedding + loss
    if counted % pp and "deepspeed" in arguments.given and counted > pp:
        # partition_balanced of DeepSpeed 0.12 to 0.19 (runtime/utils.py): the first stages have one more
        stage, more = divmod(counted, pp)
        layers = [stage + (index < more) for index in range(pp)]
        layers[0], layers[-1] = layers[0] - embedding, layers[-1] - loss
        return LayerSplit(tuple(layers), 1)
    if counted % pp:
        plain = later("{layers} layers are not a multiple of --pipeline-model-parallel-size {pp}")
        accounted = later(
            "{layers} layers (with what is accounted for) are not a multiple of --pipeline-model-parallel-size {pp}"
        )
        message = say(accounted if embedding + loss else plain, layers=counted, pp=pp)
        arguments.trouble("--num-layers", message, total)
        return None
    stage = counted // pp
    vpp = _chunks(arguments, stage)
    if vpp is None:
        return None
    if stage % vpp:
        arguments.trouble(f"--{_CHUNKS}", say("does not divide the {stage} layers of a stage", stage=stage), vpp)
        return None
    layers = [stage] * pp
    layers[0] -= embedding
    layers[-1] -= loss
    empty = tuple(say("stage {index} has no layer", index=index) for index, count in enumerate(layers) if count == 0)
    return LayerSplit(tuple(layers), vpp, empty)


def _ends(arguments: Arguments, total: int, pp: int) -> LayerSplit | None:
    first, last = arguments.number(_FIRST), arguments.number(_LAST)
    middle = total - (first or 0) - (last or 0)
    stages = pp - (first is not None) - (last is not None)
    if middle < 0 or stages < 0 or (stages == 0) != (middle == 0) or (stages and middle % stages):
        message = say(
            "{middle} layers are left for {stages} stages between, which must be equal", middle=middle, stages=stages
        )
        arguments.trouble(f"--{_FIRST if first is not None else _LAST}", message, first if first is not None else last)
        return None
    between = [middle // stages] * stages if stages else []
    layers = [*([first] if first is not None else []), *between, *([last] if last is not None else [])]
    vpp = _chunks(arguments, layers[0]) or 1
    uneven = [count for count in layers if count % vpp]
    if uneven:
        arguments.trouble(f"--{_CHUNKS}", say("does not divide the {stage} layers of a stage", stage=uneven[0]), vpp)
        return None
    return LayerSplit(tuple(layers), vpp)


def _listed(arguments: Arguments, name: str, total: int, pp: int) -> LayerSplit | None:
    text = arguments.text(name)
    if text is None:
        return None
    chunks = _layout_chunks(text) if name == _LAYOUT else _list_chunks(text)
    if chunks is None:
        arguments.trouble(f"--{name}", "is not followed", text)
        return None
    flat = [count for chunk in chunks for count in chunk]
    nested = name == "pipeline-num-transformer-layers"
    if sum(flat) != total:
        arguments.trouble(
            f"--{name}", say("has {flat} layers, --num-layers is {total}", flat=sum(flat), total=total), text
        )
        return None
    if (len(chunks) if nested else len(flat)) % pp or (nested and len(chunks) != pp):
        arguments.trouble(
            f"--{name}",
            say("has {chunks} stages, not a multiple of pipeline size {pp}", chunks=len(chunks), pp=pp),
            text,
        )
        return None
    stages = chunks if nested else [flat[stage::pp] for stage in range(pp)]  # flat: chunk by chunk along the pipeline
    if len({len(stage) for stage in stages}) > 1:
        arguments.trouble(f"--{name}", "has stages with different numbers of chunks", text)
        return None
    vpp = arguments.number(_CHUNKS, 1) or 1 if name == "custom-pipeline-layers" else 1
    if vpp > 1:  # LoongForge: each stage's layers in so many chunks
        stages = [[stage[0] // vpp + (part < stage[0] % vpp) for part in range(vpp)] for stage in stages]
    return _of_chunks(stages)


def _of_chunks(stages: Sequence[Sequence[int]]) -> LayerSplit:
    """The split of stages given chunk by chunk. A plan has equal chunks; its first may be one layer short, its last
    fewer than vpp (`Strategy.slots`)."""
    vpp = len(stages[0])
    layers = tuple(sum(stage) for stage in stages)
    largest = [max(stage) for stage in stages]
    refusals = []
    for index, stage in enumerate(stages):
        missing = largest[index] * vpp - sum(stage)
        short_start = index == 0 and missing == 1 and stage[0] == largest[index] - 1
        short_end = index == len(stages) - 1 and missing < vpp and stage[-1] == largest[index] - missing
        if missing and not short_start and not short_end:
            chunks = ", ".join(map(str, stage))
            refusals.append(
                say(
                    "stage {index} has chunks of {chunks} layers: a plan here has chunks of one length",
                    index=index,
                    chunks=chunks,
                )
            )
    refusals += [say("stage {index} has no layer", index=index) for index, count in enumerate(layers) if count == 0]
    return LayerSplit(layers, vpp, tuple(refusals))


def _list_chunks(text: str) -> list[list[int]] | None:
    """`7,9,9,7` as one list, `[[7],[9]]` as lists of chunks by stage."""
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return None
    if isinstance(value, int):
        return [[value]]
    if isinstance(value, tuple | list) and all(isinstance(item, int) for item in value):
        return [list(value)]
    if isinstance(value, tuple | list) and all(isinstance(item, list) for item in value):
        return [[int(count) for count in item] for item in value if all(isinstance(count, int) for count in item)]
    return None


def _layout_chunks(text: str) -> list[list[int]] | None:
    """Decoder layers between the bars of Megatron's layout string, with its repetitions expanded."""
    plain = re.sub(r"[\s,]", "", text)
    if any(len(digits) > _DIGITS for digits in re.findall(r"\d+", plain)):
        return None
    try:
        plain = re.sub(r"\(([^()]*)\)\*(\d+)", lambda match: match.group(1) * int(match.group(2)), plain)
        plain = re.sub(r"([EtmL|])\*(\d+)", lambda match: match.group(1) * int(match.group(2)), plain)
    except (ValueError, MemoryError):
        return None
    if not re.fullmatch(r"[EtmL|]+", plain):
        return None
    return [[stage.count("t") for stage in plain.split("|")]]


def _without_noops(split: LayerSplit, noops: Sequence[int], arguments: Arguments) -> LayerSplit:
    """The split without the layers that do nothing: they cost next to nothing."""
    if not noops:
        return split
    if len(set(noops)) < len(noops) or max(noops) >= sum(split.layers) or min(noops) < 0:
        arguments.trouble("--noop-layers", "must be different places below --num-layers", list(noops))
        return split
    pp, vpp, start = len(split.layers), split.vpp, 0
    if any(count % vpp for count in split.layers):
        refusal = say("--noop-layers beside an embedding or a head that counts as a layer: chunks of different lengths")
        return LayerSplit(split.layers, vpp, (*split.refusals, refusal))
    stages: list[list[int]] = [[] for _ in split.layers]
    for place in range(pp * vpp):  # chunk by chunk along the pipeline
        count = split.layers[place % pp] // vpp
        stages[place % pp].append(count - sum(start <= noop < start + count for noop in noops))
        start += count
    if vpp > 1:
        of_chunks = _of_chunks(stages)
        return LayerSplit(of_chunks.layers, vpp, (*split.refusals, *of_chunks.refusals))
    layers = tuple(sum(stage) for stage in stages)
    empty = tuple(
        say("stage {index} of {pp} has no layer but noop ones", index=index, pp=pp)
        for index, n in enumerate(layers)
        if n == 0
    )
    return LayerSplit(layers, vpp, (*split.refusals, *empty))
