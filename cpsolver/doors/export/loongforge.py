"""LoongForge (formerly AIAK-Training-LLM): Megatron-Core 0.15's arguments, with a recompute number for each stage."""

from __future__ import annotations

from collections.abc import Iterator

from cpsolver.doors.export.base import CannotExpress, Launch
from cpsolver.doors.export.dialect import CORE_0_15, Flag
from cpsolver.doors.export.layout import is_plain, layout_string
from cpsolver.doors.export.megatron import assembled, shared_flags
from cpsolver.doors.export.parallel_args import check_schedule, layer_flags, recompute_flags
from cpsolver.doors.export.training_args import check_switches
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem


def loongforge(problem: Problem, s: Strategy) -> Launch:
    """LoongForge of 2026-08; raises CannotExpress."""
    check_schedule(s, CORE_0_15.name)
    check_switches(problem.spec.training, CORE_0_15.name)
    flags = [*shared_flags(problem, s, CORE_0_15), *stage_recompute(s), *_layers(problem, s)]
    launch = assembled(problem, s, CORE_0_15, flags)
    files = {name: text.replace("pretrain_gpt.py", "loongforge/train.py") for name, text in launch.files.items()}
    notes = (*launch.notes, *_notes(problem, s))
    return Launch(launch.target, launch.arguments, launch.environment, files, launch.main, notes)


def stage_recompute(s: Strategy) -> Iterator[Flag]:
    """One number of recomputed layers for each stage, where they differ."""
    kinds = set(s.recompute)
    if len(set(zip(s.recompute, s.recompute_layers, s.recompute_modules, strict=True))) == 1:
        yield from recompute_flags(s)
        return
    if not kinds <= {"none", "block"}:
        words = ", ".join(sorted(kinds))
        raise CannotExpress((f"recompute differs by stage ({words}): only block, with a number a stage, may differ",))
    if s.vpp > 1:
        reason = "its fork could not be read, whether --custom-pipeline-recompute-layers counts a stage or a chunk"
        raise CannotExpress((f"recompute differs by stage, and vpp is {s.vpp}: {reason}; one choice for all",))
    yield ("--recompute-granularity", "full")
    yield ("--recompute-method", "block")
    yield ("--custom-pipeline-recompute-layers", ",".join(map(str, s.recompute_layers)))


def _own_list(problem: Problem, s: Strategy) -> bool:
    return s.vpp == 1 and not is_plain(s) and not problem.model.mtp_layers


def _layers(problem: Problem, s: Strategy) -> Iterator[Flag]:
    if _own_list(problem, s):
        yield ("--custom-pipeline-layers", ",".join(map(str, s.layers)))
    else:
        yield from layer_flags(problem, s, CORE_0_15)


def _notes(problem: Problem, s: Strategy) -> Iterator[str]:
    if _own_list(problem, s):
        told = layout_string(s, problem.model.mtp_layers)
        yield f"--custom-pipeline-layers is deprecated; the same as --pipeline-model-parallel-layout '{told}'"
