"""The plan that a script runs, from its arguments: a strategy, or why no strategy can express it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.chips import placed
from cpsolver.doors.importing.degrees import ScriptDegrees, partitioned_by_bf16, read_degrees
from cpsolver.doors.importing.recomputation import Recomputation, read_recomputation
from cpsolver.doors.importing.scope import notes_beside, plan_refusals
from cpsolver.doors.importing.split import LayerSplit, places_as_v, read_split
from cpsolver.doors.importing.training import adapter_fields, offloaded_modules
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Schedule, StageGroup, Strategy
from cpsolver.spec.training import OFFLOAD_MODULES

_GROUP = "microbatch-group-size-per-virtual-pipeline-stage"
_MEGATRONS_OWN = ("vanilla", "interleaved_1f1b")
"""HYGON's --schedule-method for Megatron's 1F1B, today's name and the one before (HYGON-AI/Megatron-LM-das 0685d1f,
hcu_megatron/features_manager/pipeline_parallel/pipeline_feature.py)."""
_V_SETUPS: dict[str, Schedule] = {"zb": "zbv", "half": "v_half", "min": "v_min"}


@dataclass(frozen=True)
class ImportedPlan:
    """The plan of a script. `refusals` say why no strategy can express it (then it is None). `notes`: what to know.

    `blocks` as in `Recomputation`: the spec's training says it.
    """

    strategy: Strategy | None
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    blocks: int = 0


@dataclass(frozen=True)
class TrainingBatch:
    """Sequences in a step, and tokens in a sequence; None where an argument is missing."""

    sequences: int | None
    tokens: int | None


def read_plan(
    arguments: Arguments, world: int | None, model: dict[str, Any], chip: str
) -> tuple[ImportedPlan, TrainingBatch]:
    """The plan of the arguments on `world` devices of one chip type; troubles are left in `arguments.troubles`."""
    tokens = arguments.number("seq-length")
    if tokens is None and not any(trouble.where == "--seq-length" for trouble in arguments.troubles):
        arguments.trouble("--seq-length", "is not given: tokens of a sequence")
    batch = arguments.number("global-batch-size")
    degrees = read_degrees(arguments, world, model)
    pp = arguments.number("pipeline-model-parallel-size", 1) or 1
    split = read_split(arguments, pp)
    recomputed = read_recomputation(arguments, pp, split)
    if degrees is None:
        return ImportedPlan(None), TrainingBatch(batch, tokens)
    steps = arguments.number("gradient-accumulation-steps", 1) or 1  # of GPT-NeoX and DeepSpeed
    batch = degrees.mbs * degrees.dp * steps if batch is None else batch
    _divisions(arguments, degrees, split, batch, tokens)
    if split is None or arguments.troubles:
        return ImportedPlan(None), TrainingBatch(batch, tokens)
    return _imported_plan(arguments, degrees, split, recomputed, batch, chip, model), TrainingBatch(batch, tokens)


def _divisions(
    arguments: Arguments, degrees: ScriptDegrees, split: LayerSplit | None, batch: int, tokens: int | None
) -> None:
    """Note a batch, microbatches or a sequence that the degrees do not divide."""
    share = degrees.mbs * degrees.dp
    if batch % share:
        factors = say("micro batch {mbs} x dp {dp} = {share}", mbs=degrees.mbs, dp=degrees.dp, share=share)
        arguments.trouble(
            "--global-batch-size", say("{number} is not a multiple of {factors}", number=batch, factors=factors), batch
        )
    elif split is not None and split.vpp > 1 and not places_as_v(arguments):
        m, group = batch // share, arguments.number(_GROUP, degrees.pp)
        if degrees.pp == 1:
            arguments.trouble(
                "--num-virtual-stages-per-pipeline-rank", say("interleaving needs a pipeline, and pp is 1")
            )
        elif m % degrees.pp and (group != m or m < degrees.pp):
            message = say("interleaving: {m} microbatches are not a multiple of pp {pp}", m=m, pp=degrees.pp)
            arguments.trouble("--global-batch-size", message, batch)
    if tokens and degrees.cp > 1 and tokens % (2 * degrees.cp):
        factors = f"2 x cp {degrees.cp} = {2 * degrees.cp}"
        message = say("{number} is not a multiple of {factors}", number=tokens, factors=factors)
        arguments.trouble("--seq-length", message, tokens)


def _imported_plan(
    arguments: Arguments,
    degrees: ScriptDegrees,
    split: LayerSplit,
    recomputed: Recomputation,
    batch: int,
    chip: str,
    model: dict[str, Any],
) -> ImportedPlan:
    refusals, notes = (
        [*split.refusals, *recomputed.refusals, *plan_refusals(arguments), *_sent_away(arguments)],
        [*notes_beside(arguments), *recomputed.notes],
    )
    schedule, sizes = _schedule(arguments, degrees, split, batch, refusals)
    if places_as_v(arguments) and len(set(split.layers)) > 1:
        notes.append(
            say("the model's last chunk is shorter: its stage's layers are counted as evenly as two chunks can be")
        )
    sequence_parallel, flash = arguments.has("sequence-parallel"), _flash(arguments)
    if sequence_parallel and degrees.tp == 1:
        notes.append(say("--sequence-parallel has no effect with tp 1: Megatron switches it off"))
    if arguments.has("use-distributed-optimizer") and not degrees.distributed_optimizer:
        notes.append(say("the distributed optimizer has nothing to shard over with dp x cp = 1"))
    if partitioned_by_bf16(arguments) and degrees.distributed_optimizer:
        notes.append(say("DeepSpeed's optimizer for bf16 shares its states out over the replicas without ZeRO too"))
    if arguments.has("lora-target-modules") and not adapter_fields(arguments, model):
        arguments.note_read("lora-r")
        refusals.append(
            say("LoRA beside experts, latent attention, special layers or multi-token prediction is not planned for")
        )
    if arguments.has("tp-2d"):
        refusals.append(say("--tp-2d: tensor parallelism in two dimensions is not known here"))
    if arguments.has("use-tp-pp-dp-mapping"):
        refusals.append(say("--use-tp-pp-dp-mapping: ranks stand in another order than the cost model has them"))
    if refusals:
        return ImportedPlan(None, tuple(refusals), tuple(notes))
    amounts = recomputed.amounts or (0,) * degrees.pp
    group = StageGroup(chip, split.layers, recomputed.kind, amounts, recomputed.modules)
    strategy = Strategy(
        **vars(degrees),
        vpp=split.vpp,
        sequence_parallel=sequence_parallel and degrees.tp > 1,
        flash_attention=flash,
        groups=(group,),
        schedule=schedule,
        micro_batches=sizes,
    )
    return ImportedPlan(placed(strategy, chip), (), tuple(notes), recomputed.blocks)


_BEFORE_CORE = {
    *("checkpoint-activations", "checkpoint-num-layers", "distribute-checkpointed-activations", "data-impl"),
    *("layernorm-epsilon", "attention-head-type"),
}
"""Arguments of Megatron-LM before its core, whose own implementation is the default; core_v0.4.0 has none of them. The
last one is of BigCode's fork of then."""


def _flash(arguments: Arguments) -> bool:
    """Whether attention is a flash kernel. By default it is in Megatron core, and is not in local implementations.

    Context parallelism needs one in every framework here.
    """
    backend = arguments.text("attention-backend")
    local = arguments.text("transformer-impl", "transformer_engine") == "local"
    flash = [
        name for name in arguments.given if name.startswith("use-flash-attn")
    ]  # and -v1, -v2, -triton of DeepSpeed
    for name in flash:
        arguments.note_read(name)
    fused = _fused_kernel(arguments)
    if flash or fused or (arguments.number("context-parallel-size", 1) or 1) > 1:
        return True
    if backend in ("unfused", "local"):
        return False
    # arguments of frameworks without Transformer Engine, whose attention is unfused without --use-flash-attn
    arguments.note_read("deepspeed")
    legacy = {"use-fused-rmsnorm", "DDP-impl", "auto-parallel", "deepspeed"} & arguments.given.keys()
    if "transformer-impl" not in arguments.given:
        legacy |= _BEFORE_CORE & arguments.given.keys()
    # Megatron-LM d98e8a6, models/backends.py: its own layers have a core of their own, whatever the backend
    return not local and (backend in ("flash", "fused", "auto") or not legacy)


def _fused_kernel(arguments: Arguments) -> bool:
    """Whether Gaudi's fused attention is on, by a number (lkk12014402/Pai-Megatron-Patch 72fa91b)."""
    names = [name for name in ("use-fused-sdpa", "use-fused-sdpa-with-recompute") if name in arguments.given]
    for name in names:
        arguments.note_read(name)
    return any((arguments.given[name] or ("1",))[0].lower() not in ("0", "false") for name in names)


def _sent_away(arguments: Arguments) -> list[str]:
    """Why no plan holds the modules that are sent to the host."""
    unknown = ", ".join(offloaded_modules(arguments)[1])
    if not unknown:
        return []
    known = ", ".join(OFFLOAD_MODULES)
    return [say("--offload-modules {names}: no spec says that, but of {known}", names=unknown, known=known)]


def _zero_bubble(arguments: Arguments, pp: int, refusals: list[str]) -> Schedule:
    """By the backward passes that may be pending: pp, or 2 pp (sail-sg/zero-bubble-pipeline-parallelism 39f2c18,
    megatron/core/zbpp_utils.py). "auto" goes by the memory that is left: taken as pp, which is sure to do."""
    pending = arguments.text("zero-bubble-max-pending-backward")
    if pending not in (None, "auto", str(pp), str(2 * pp)):
        refusals.append(
            say(
                "--zero-bubble-max-pending-backward {pending}: only pp or 2 pp here, {pp} or {twice}",
                pending=pending,
                pp=pp,
                twice=2 * pp,
            )
        )
    return "zb2p" if pending == str(2 * pp) else "zb1p"


def _v_schedule(arguments: Arguments, refusals: list[str]) -> Schedule:
    """By the memory that it is set up for (the same fork, megatron/core/pipeline_parallel/zerobubble/scheduler)."""
    setup = arguments.text("zero-bubble-v-schedule-mem-setup") or "zb"
    if setup not in _V_SETUPS:
        refusals.append(
            say(
                "--zero-bubble-v-schedule-mem-setup {setup}: only {v_setups} are known here",
                setup=setup,
                v_setups=", ".join(_V_SETUPS),
            )
        )
    return _V_SETUPS.get(setup, "zbv")


def _schedule(
    arguments: Arguments, degrees: ScriptDegrees, split: LayerSplit, batch: int, refusals: list[str]
) -> tuple[Schedule, tuple[int, ...]]:
    """The schedule, and the microbatches' sizes where they differ. What no strategy can express goes to `refusals`."""
    if method := arguments.text("schedules-method"):
        if method == "dualpipev":
            return "dualpipev", ()
        refusals.append(say("--schedules-method {method}: that schedule is not known here", method=method))
    if (method := arguments.text("schedule-method", _MEGATRONS_OWN[0])) not in _MEGATRONS_OWN:
        refusals.append(say("--schedule-method {method}: that schedule is not known here", method=method))
    if arguments.has("zero-bubble-v-schedule"):
        return _v_schedule(arguments, refusals), ()
    if arguments.has("enable-zbh1-pipeline") and degrees.pp > 1:  # ZB-H1 (Megatron-DeepSpeed 4efb479, initialize.py)
        return "zb1p", ()
    if arguments.has("enable-zero-bubble"):
        return _zero_bubble(arguments, degrees.pp, refusals), ()
    folded = arguments.text("foldx-mode") or arguments.text("fold-mode")
    m = batch // (degrees.mbs * degrees.dp)
    group = arguments.number(_GROUP, degrees.pp)
    if split.vpp > 1 and (folded == "aiao" or (group == m and m > degrees.pp)):
        return "breadth_first", ()
    if split.vpp > 1 and group != degrees.pp:
        refusals.append(say("--{name} {group}: only pp or all microbatches here", name=_GROUP, group=group))
    if arguments.has("optimized-pipeline"):
        sizes = arguments.numbers("manual-mbs")
        if sizes is None:
            refusals.append(say("--optimized-pipeline without sizes in --manual-mbs: they are found when it runs"))
        elif len(sizes) != m or sum(sizes) * degrees.dp != batch:
            told = say(
                "--manual-mbs has {sizes} sizes, {all} in all: {m} are needed, {needed} in all",
                sizes=len(sizes),
                all=sum(sizes),
                m=m,
                needed=batch // degrees.dp,
            )
            refusals.append(told)
        return "1f1b", tuple(sizes or ())
    return "1f1b", ()
