"""What a script recomputes, in the terms of a plan: kind, layers by stage and modules.

Meaning by Megatron-LM d98e8a6 (core/recompute.py): uniform has units of K layers; block the first K layers of each
chunk. MindSpeed 028de58 counts K by pipeline rank with --enable-recompute-layers-per-pp-rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.split import LayerSplit
from cpsolver.plans.strategy import CORE, NAMED_MODULES, RecomputeKind


@dataclass(frozen=True)
class Recomputation:
    """Kind, number by stage (0: none) and modules. `refusals`: why no plan can express it."""

    kind: RecomputeKind = "none"
    amounts: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def read_recomputation(arguments: Arguments, pp: int, split: LayerSplit | None) -> Recomputation:
    """The recomputation that the arguments ask for; contradictions are left in `arguments.troubles`.

    `split`: layers and chunks of the stages; None where they are wrong.
    """
    granularity = arguments.text("recompute-granularity")
    method, number = arguments.text("recompute-method"), arguments.number("recompute-num-layers", least=0)
    by_stage = arguments.numbers("custom-pipeline-recompute-layers")
    modules = tuple(name for value in arguments.values("recompute-modules") for name in value.split(","))
    short_flag = arguments.has("recompute-activations")
    if arguments.has("checkpoint-activations"):
        return Recomputation("uniform", (1,) * pp)
    if arguments.has("moe-layer-recompute") and granularity != "full":  # deprecated: adds `moe` to the modules
        return _selective(arguments, (*(modules or CORE), "moe"))
    if granularity is None:
        if short_flag:  # --recompute-modules alone turns nothing on (transformer_config.py)
            return _selective(arguments, modules)
        if method is not None:
            arguments.trouble("--recompute-method", "needs --recompute-granularity full", method)
        return Recomputation()
    if granularity == "selective":
        if method is not None:
            arguments.trouble("--recompute-method", "goes with --recompute-granularity full only", method)
        return _selective(arguments, modules)
    if granularity != "full":
        arguments.trouble("--recompute-granularity", "is not one of the choices", granularity, "full, selective")
        return Recomputation()
    if by_stage is not None and method == "uniform":
        return Recomputation(refusals=("--custom-pipeline-recompute-layers goes with --recompute-method block",))
    if by_stage is not None and method == "block":
        return _by_stage(arguments, by_stage, pp, split)
    return _full(arguments, method, number, pp, split.vpp if split else 1)


def _by_stage(arguments: Arguments, amounts: list[int], pp: int, split: LayerSplit | None) -> Recomputation:
    """LoongForge's list of layers by stage. How they spread over chunks is not known, unless they are all layers."""
    if len(amounts) != pp:
        arguments.trouble("--custom-pipeline-recompute-layers", f"has {len(amounts)} numbers for {pp} stages")
        return Recomputation()
    if not any(amounts):
        return Recomputation()
    refusals: tuple[str, ...] = ("--custom-pipeline-recompute-layers has a 0",) if 0 in amounts else ()
    if split is not None and split.vpp > 1:
        if any(amount < layers for amount, layers in zip(amounts, split.layers, strict=True)):
            unknown = f"with {split.vpp} chunks a stage: which layers of each is not known"
            refusals += (f"--custom-pipeline-recompute-layers {unknown}",)
            return Recomputation("block", tuple(amounts), refusals=refusals)
        amounts = [-(-layers // split.vpp) for layers in split.layers]
    return Recomputation("block", tuple(amounts), refusals=refusals)


def _full(arguments: Arguments, method: str | None, number: int | None, pp: int, vpp: int) -> Recomputation:
    if method not in ("uniform", "block"):
        message = "must be given with --recompute-granularity full" if method is None else "is not one of the choices"
        arguments.trouble("--recompute-method", message, method, "uniform, block")
        return Recomputation()
    if number is None:
        arguments.trouble("--recompute-num-layers", "must be given with --recompute-granularity full")
        return Recomputation()
    if number == 0:
        return Recomputation()
    by_rank = arguments.has("enable-recompute-layers-per-pp-rank")
    if method == "block" and by_rank:
        if number % vpp:
            refusal = f"{number} recomputed layers of a rank in {vpp} chunks: not the same number in each"
            return Recomputation("block", (number,) * pp, refusals=(refusal,))
        number //= vpp
    return Recomputation("uniform" if method == "uniform" else "block", (number,) * pp)


def _selective(arguments: Arguments, modules: tuple[str, ...]) -> Recomputation:
    unknown = tuple(name for name in modules if name not in NAMED_MODULES)
    refusals = tuple(f"recompute module {name} is not known here: {', '.join(NAMED_MODULES)}" for name in unknown)
    return Recomputation("selective", (), modules, refusals)
