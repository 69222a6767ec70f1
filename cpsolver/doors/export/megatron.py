"""Megatron-LM, Megatron-Core by version and LoongForge: the arguments of their pretraining scripts."""

from __future__ import annotations

from collections.abc import Iterator

from cpsolver.doors.export.dialect import CORE_0_12, CORE_0_13, CORE_0_15, MEGATRON_LM, Dialect, Flag, flattened
from cpsolver.doors.export.launch import Launch
from cpsolver.doors.export.model_args import expert_flags, model_flags, model_notes, padded_vocabulary
from cpsolver.doors.export.parallel_args import (
    batch_flags,
    context_flags,
    degree_flags,
    is_plain,
    layer_flags,
    layout_string,
    recompute_flags,
    schedule_flags,
    sharding_flags,
    uses_fsdp,
)
from cpsolver.doors.export.script import node_notes, nodes_file, train_script
from cpsolver.doors.export.training_args import (
    activation_flags,
    check_switches,
    gradient_flags,
    kernel_flags,
    optimizer_flags,
    overlap_flags,
    overlap_notes,
    precision_flags,
)
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

SCRIPT = "pretrain_gpt.py"


def megatron_lm(problem: Problem, s: Strategy) -> Launch:
    """Megatron-LM main of 2026 and Megatron-Core from 0.16.1 on; raises CannotExpress."""
    return _launch(problem, s, MEGATRON_LM)


def core_0_13(problem: Problem, s: Strategy) -> Launch:
    """Megatron-Core 0.13 (0.14 and 0.15 but for the flag of FSDP); raises CannotExpress."""
    return _launch(problem, s, CORE_0_13)


def core_0_12(problem: Problem, s: Strategy) -> Launch:
    """Megatron-Core 0.12, without a layout string; raises CannotExpress."""
    return _launch(problem, s, CORE_0_12)


def _launch(problem: Problem, s: Strategy, dialect: Dialect) -> Launch:
    check_switches(problem.spec.training, dialect.name)
    flags = [*shared_flags(problem, s, dialect), *recompute_flags(s), *layer_flags(problem, s, dialect)]
    return assembled(problem, s, dialect, flags)


def shared_flags(problem: Problem, s: Strategy, dialect: Dialect) -> Iterator[Flag]:
    """All options but those on recomputation and layers by stage, which dialects tell differently."""
    training = problem.spec.training
    yield from model_flags(problem.model, problem.sequence, dialect)
    yield from expert_flags(problem.model, dialect)
    yield from degree_flags(problem, s)
    yield from context_flags(s)
    yield from schedule_flags(problem, s)
    yield from sharding_flags(s, dialect)
    yield from gradient_flags(problem, s)
    yield from overlap_flags(problem, s, dialect)
    yield from batch_flags(problem, s)
    yield from precision_flags(training)
    yield from kernel_flags(problem, s)
    yield from optimizer_flags(training, dialect)
    yield from activation_flags(training, dialect)


def assembled(problem: Problem, s: Strategy, dialect: Dialect, flags: list[Flag]) -> Launch:
    """The launch of Megatron-LM's own script with those options."""
    environment = environment_of(s)
    notes = (*plan_notes(problem, s, dialect), *model_notes(problem.model, problem.sequence, dialect))
    script = train_script(problem, s, flags, environment, SCRIPT)
    files = {"train.sh": script, "nodes.txt": nodes_file(problem, s)}
    return Launch(dialect.name, flattened(flags), environment, files, "train.sh", notes)


def environment_of(s: Strategy) -> dict[str, str]:
    """Variables that the parser asks for.

    One hardware queue, so that communication overlaps in order, with tp or cp; several with FSDP, which must not have
    one (validate_args asserts both on chips before Blackwell).
    """
    if uses_fsdp(s):
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


def plan_notes(problem: Problem, s: Strategy, dialect: Dialect) -> Iterator[str]:
    """What is the user's to do for this plan."""
    padded = padded_vocabulary(problem.model, s.tp)
    yield f"vocabulary: {problem.model.vocab} rows, padded to {padded}; --vocab-size or the tokenizer says the first"
    yield "data, tokenizer, learning rate and checkpoints are not the plan's: see DATA_ARGS in train.sh"
    if uses_fsdp(s) and dialect.fsdp == "--use-custom-fsdp":
        yield "from Megatron-Core 0.14 on the flag --use-custom-fsdp is --use-megatron-fsdp"
    if uses_fsdp(s) and s.tp * s.cp > 1:
        yield "FSDP must not have CUDA_DEVICE_MAX_CONNECTIONS=1, which tp and cp want: their overlap suffers"
    yield from overlap_notes(problem, s, dialect)
    yield from node_notes(problem, s)


# LoongForge: Megatron-Core 0.15's arguments, with a recompute number for each stage.


def loongforge(problem: Problem, s: Strategy) -> Launch:
    """LoongForge of 2026-08 (formerly AIAK-Training-LLM); raises CannotExpress."""
    check_switches(problem.spec.training, CORE_0_15.name)
    flags = [*shared_flags(problem, s, CORE_0_15), *stage_recompute(s), *_loongforge_layers(problem, s)]
    launch = assembled(problem, s, CORE_0_15, flags)
    files = {name: text.replace("pretrain_gpt.py", "loongforge/train.py") for name, text in launch.files.items()}
    notes = (*launch.notes, *_loongforge_notes(problem, s))
    return Launch(launch.target, launch.arguments, launch.environment, files, launch.main, notes)


def stage_recompute(s: Strategy) -> Iterator[Flag]:
    """One number of recomputed layers for each stage, where they differ."""
    if len(set(zip(s.recompute, s.recompute_layers, s.recompute_modules, strict=True))) == 1:
        yield from recompute_flags(s)
        return
    yield ("--recompute-granularity", "full")
    yield ("--recompute-method", "block")
    yield ("--custom-pipeline-recompute-layers", ",".join(map(str, s.recompute_layers)))


def _own_list(problem: Problem, s: Strategy) -> bool:
    return s.vpp == 1 and not is_plain(s) and not problem.model.mtp_layers


def _loongforge_layers(problem: Problem, s: Strategy) -> Iterator[Flag]:
    if _own_list(problem, s):
        yield ("--custom-pipeline-layers", ",".join(map(str, s.layers)))
    else:
        yield from layer_flags(problem, s, CORE_0_15)


def _loongforge_notes(problem: Problem, s: Strategy) -> Iterator[str]:
    if _own_list(problem, s):
        told = layout_string(s, problem.model.mtp_layers)
        yield f"--custom-pipeline-layers is deprecated; the same as --pipeline-model-parallel-layout '{told}'"
