"""What a script recomputes: granularity, method, numbers and modules, as a plan says it.

Meaning by Megatron-LM d98e8a6 (core/recompute.py): uniform has units of K layers; block the first K layers of each
chunk. MindSpeed 028de58 counts K by pipeline rank with --enable-recompute-layers-per-pp-rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpsolver.doors.importing.arguments import Arguments
from cpsolver.doors.importing.split import LayerSplit
from cpsolver.plans.strategy import CORE, MODULES, RecomputeKind


@dataclass(frozen=True)
class Recomputation:
    """Kind, number by stage (0: none) and modules; why the plan cannot say it, where it cannot."""

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
    own = arguments.numbers("custom-pipeline-recompute-layers")
    modules = tuple(name for value in arguments.values("recompute-modules") for name in value.split(","))
    short = arguments.flag("recompute-activations")
    if arguments.flag("checkpoint-activations"):
        return Recomputation("uniform", (1,) * pp)
    if arguments.flag("moe-layer-recompute") and granularity != "full":  # deprecated: `moe` beside the modules told
        return _selective(arguments, (*(modules or CORE), "moe"))
    if granularity is None:
        if short:  # --recompute-modules alone turns nothing on (transformer_config.py)
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
    if own is not None and method == "uniform":
        told = "--custom-pipeline-recompute-layers goes with --recompute-method block"
        return Recomputation(refusals=(told,))
    if own is not None and method == "block":
        return _by_stage(arguments, own, pp, split)
    return _full(arguments, method, number, pp, split.vpp if split else 1)


def _by_stage(arguments: Arguments, own: list[int], pp: int, split: LayerSplit | None) -> Recomputation:
    """LoongForge's list: layers of each stage. How chunks share them out is not known, unless it is all layers."""
    if len(own) != pp:
        arguments.trouble("--custom-pipeline-recompute-layers", f"has {len(own)} numbers for {pp} stages")
        return Recomputation()
    if not any(own):
        return Recomputation()
    refusals = ("--custom-pipeline-recompute-layers has a 0",) if 0 in own else ()
    if split is not None and split.vpp > 1:
        if any(number < held for number, held in zip(own, split.layers, strict=True)):
            told = (
                f"--custom-pipeline-recompute-layers with {split.vpp} chunks a stage: which layers of each is not known"
            )
            return Recomputation("block", tuple(own), refusals=(*refusals, told))
        own = [-(-held // split.vpp) for held in split.layers]
    return Recomputation("block", tuple(own), refusals=refusals)


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
    if method == "block" and arguments.flag("enable-recompute-layers-per-pp-rank") and number % vpp:
        told = f"{number} recomputed layers of a rank in {vpp} chunks: not the same number in each"
        return Recomputation("block", (number,) * pp, refusals=(told,))
    if method == "block" and arguments.flag("enable-recompute-layers-per-pp-rank"):
        number //= vpp
    return Recomputation("uniform" if method == "uniform" else "block", (number,) * pp)


def _selective(arguments: Arguments, modules: tuple[str, ...]) -> Recomputation:
    strange = tuple(name for name in modules if name not in MODULES)
    refusals = tuple(f"recompute module {name} is not known here: {', '.join(MODULES)}" for name in strange)
    return Recomputation("selective", (), modules, refusals)
