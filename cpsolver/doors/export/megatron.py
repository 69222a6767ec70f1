"""Megatron-LM and Megatron-Core by version: the arguments of their pretraining scripts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cpsolver.doors.export import model_args, parallel_args, training_args
from cpsolver.doors.export.dialect import CORE_0_12, CORE_0_13, MEGATRON_LM, Dialect, Flag, flattened
from cpsolver.doors.export.launch import Exporter, Launch
from cpsolver.doors.export.script import node_notes, nodes_file, train_script
from cpsolver.doors.export.shared import allocator_variables
from cpsolver.inputs.language import say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

SCRIPT, HYBRID = "pretrain_gpt.py", "pretrain_hybrid.py"
"""The script of usual models, and that of models whose layers are one block each."""


def _launch(problem: Problem, s: Strategy, dialect: Dialect) -> Launch:
    """The options and script of one version; raises CannotExpress."""
    training_args.check_switches(problem.spec.training, dialect.name, dialect.switches)
    flags = [
        *shared_flags(problem, s, dialect),
        *parallel_args.recompute_flags(problem, s),
        *parallel_args.layer_flags(problem, s, dialect),
    ]
    return assembled(problem, s, dialect, flags)


megatron_lm: Exporter = partial(_launch, dialect=MEGATRON_LM)
"""Megatron-LM main of 2026 and Megatron-Core from 0.16.1 on."""
core_0_13: Exporter = partial(_launch, dialect=CORE_0_13)
"""Megatron-Core 0.13 (0.14 and 0.15 but for the flag of FSDP)."""
core_0_12: Exporter = partial(_launch, dialect=CORE_0_12)
"""Megatron-Core 0.12, without a layout string."""


def shared_flags(problem: Problem, s: Strategy, dialect: Dialect) -> Iterator[Flag]:
    """All options but those on recomputation and layers by stage, which dialects write differently."""
    training = problem.spec.training
    yield from model_args.model_flags(problem.model, problem.sequence, dialect)
    yield from model_args.expert_flags(problem.model, dialect, training.moe_grouped_gemm)
    yield from model_args.special_flags(problem.model)
    yield from parallel_args.degree_flags(problem, s)
    yield from parallel_args.context_flags(s)
    yield from parallel_args.schedule_flags(problem, s)
    yield from parallel_args.sharding_flags(s, dialect)
    yield from training_args.gradient_flags(problem, s)
    yield from training_args.overlap_flags(problem, s)
    yield from training_args.graph_flags(problem, s)
    yield from parallel_args.batch_flags(problem, s)
    yield from training_args.precision_flags(problem, dialect)
    yield from training_args.kernel_flags(problem, s)
    training_args.check_matrices(problem, s)
    yield from training_args.optimizer_flags(training, dialect)
    yield from training_args.activation_flags(training, dialect)


def assembled(problem: Problem, s: Strategy, dialect: Dialect, flags: list[Flag]) -> Launch:
    """The launch of Megatron-LM's own script with those options."""
    environment = environment_of(problem, s)
    notes = (*plan_notes(problem, s, dialect), *model_args.model_notes(problem.model, problem.sequence, dialect))
    script = train_script(problem, s, flags, environment, SCRIPT if problem.model.layer_pattern is None else HYBRID)
    files = {"train.sh": script, "nodes.txt": nodes_file(problem, s)}
    return Launch(dialect.name, flattened(flags), environment, files, "train.sh", notes, "train.sh")


def environment_of(problem: Problem, s: Strategy) -> dict[str, str]:
    """Variables that the parser asks for, and those of the allocator.

    One hardware queue, so that communication overlaps in order, with tp or cp; several with FSDP, which must not have
    one (validate_args asserts both on chips before Blackwell).
    """
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "8" if parallel_args.uses_fsdp(s) else "1", **allocator_variables(problem)}


def plan_notes(problem: Problem, s: Strategy, dialect: Dialect) -> Iterator[str]:
    """What is the user's to do for this plan."""
    padded = model_args.padded_vocabulary(problem.model, s.tp)
    yield say(
        "vocabulary: {vocab} rows, padded to {padded}; --vocab-size or the tokenizer says the first",
        vocab=problem.model.vocab,
        padded=padded,
    )
    yield say("data, tokenizer, learning rate and checkpoints are not the plan's: see DATA_ARGS in train.sh")
    if problem.spec.training.packs:
        yield say(
            "packed sequences: --sft and its tokenizer's options among DATA_ARGS; it fills windows of --seq-length"
        )
    if parallel_args.uses_fsdp(s) and dialect.fsdp == "--use-custom-fsdp":
        yield say("from Megatron-Core 0.14 on the flag --use-custom-fsdp is --use-megatron-fsdp")
    if parallel_args.uses_fsdp(s) and s.tp * s.cp > 1:
        yield say("FSDP must not have CUDA_DEVICE_MAX_CONNECTIONS=1, which tp and cp want: their overlap suffers")
    if problem.spec.training.optimizer == "muon":
        yield say(
            "Muon needs the package emerging-optimizers, and with the distributed optimizer Megatron-Core 0.18 on"
        )
    if problem.spec.training.optimizer == "soap":
        yield say(
            "SOAP needs Megatron-Core 0.19 on and the package emerging-optimizers, of a version that it knows (0.3.1)"
        )
    yield from training_args.overlap_notes(problem, s)
    yield from node_notes(problem, s)
