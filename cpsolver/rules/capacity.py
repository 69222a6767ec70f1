"""Rules on recomputation and on the memory that it saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cpsolver.cost.memory import StageBytes
from cpsolver.cost.modules import applicable
from cpsolver.evaluation.evaluate import stage_memory
from cpsolver.inputs.language import later, say
from cpsolver.plans.strategy import BESIDE_FUNCTIONS, Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules.base import listed, rule
from hw_specs.units import GIB


@rule(
    "a number of recomputed layers goes with block and uniform only, modules that the model has with selective",
    scope="structure",
)
def recompute(problem: Problem, s: Strategy) -> Iterator[str]:
    """With scope chip they are one choice a chip type. A number above a chunk's layers is no mistake: Megatron takes it
    without a word, and recomputes all there are. So does the cost model, and the search offers such a number where it
    is pinned.
    """
    for group in s.groups:
        amounts = group.stage_recompute_layers
        if len(amounts) != group.num_stages:
            yield later(
                "{chip}: {amounts} recompute numbers for {stages} stages",
                chip=group.chip,
                amounts=len(amounts),
                stages=group.num_stages,
            )
        wrong = [n for n in amounts if (n < 1 if group.recompute in ("block", "uniform") else n != 0)]
        if wrong:
            yield later(
                "{chip}: recompute {recompute} with {amount} layers",
                chip=group.chip,
                recompute=group.recompute,
                amount=wrong[0],
            )
        if group.recompute != "selective" and group.modules:
            yield later(
                "{chip}: recompute {recompute} with modules {modules}",
                chip=group.chip,
                recompute=group.recompute,
                modules=listed(group.modules),
            )
    yield from _modules(problem, s)
    yield from _beside_functions(problem, s)
    if problem.spec.search.recompute_scope == "chip":
        for chip in dict.fromkeys(s.stage_chips):
            choices = {
                (kind, n, *modules)
                for name, kind, n, modules in zip(
                    s.stage_chips, s.recompute, s.recompute_layers, s.recompute_modules, strict=False
                )
                if name == chip
            }
            if len(choices) > 1:
                yield later(
                    "{chip}: stages recompute differently ({choices}), recompute_scope is chip",
                    chip=chip,
                    choices=sorted(choices),
                )


def _modules(problem: Problem, s: Strategy) -> Iterator[str]:
    """Modules that the model's layers do not have, or the launcher does not know."""
    known = applicable(problem)
    used = {name for group in s.groups if group.recompute == "selective" for name in group.modules}
    for name in sorted(used - set(known)):
        yield later(
            "recompute module {name} is not one of this model and launcher: {known}", name=name, known=listed(known)
        )


def _beside_functions(problem: Problem, s: Strategy) -> Iterator[str]:
    """MindSpeed 028de58, docs/zh/features/activation-function-recompute.md and arguments.py, validate_args_wrapper."""
    kinds = {group.recompute for group in s.groups} - {*BESIDE_FUNCTIONS}
    training = problem.spec.training
    if kinds and training.recompute_activation_function:
        yield later(
            "activation functions are made again beside recomputation of kind none or block only "
            "(training.recompute_activation_function): it is {kind}",
            kind=min(kinds),
        )
    if kinds and training.recompute_mla_up_proj:
        yield later(
            "latent attention's projections run again beside recomputation of kind none or block only "
            "(training.recompute_mla_up_proj): it is {kind}",
            kind=min(kinds),
        )
    if training.recompute_mlp_layers and any(kind != "none" for kind in s.recompute):
        yield later(
            "feed-forward blocks of some layers are recomputed (training.recompute_mlp_layers) without other "
            "recomputation only"
        )
    if kinds and training.mla_swap_core_attn_out:
        yield later(
            "attention's results wait on the host beside recomputation of kind none or block only "
            "(training.mla_swap_core_attn_out): it is {kind}",
            kind=min(kinds),
        )
    if kinds and training.moe_zero_memory is not None:
        yield later(
            "experts' activations are made again beside recomputation of kind none or block only "
            "(training.moe_zero_memory): it is {kind}",
            kind=min(kinds),
        )


@rule(
    "layers' activations wait on the host without a pipeline (pp 1) and without recomputation only",
    briefly=lambda *_: say("offload_layers needs pp 1 and no recomputation"),
)
def layer_offload(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron's conditions on --cpu-offloading-num-layers (core/transformer/transformer_config.py)."""
    layers = problem.spec.training.offload_layers
    if not layers:
        return
    if s.pp > 1:
        yield later(
            "activations of {layers} layers wait on the host without a pipeline only: pp is {s.pp}, and must be 1",
            layers=layers,
            s=s,
        )
    kinds = [kind for kind in s.recompute if kind != "none"]
    if kinds:
        yield later(
            "activations of {layers} layers wait on the host without recomputation only: it is {kind}",
            layers=layers,
            kind=kinds[0],
        )


@rule("every stage fits its device's memory less the margin")
def memory(problem: Problem, s: Strategy) -> Iterator[str]:
    return too_full(problem, s)


def too_full(problem: Problem, s: Strategy, needed: Sequence[StageBytes] | None = None) -> Iterator[str]:
    """The stages that do not fit; `needed`: the bytes of all, where they are known."""
    for stage, (chip, need) in enumerate(zip(s.stage_chips, needed or stage_memory(problem, s), strict=True)):
        device = problem.supply(chip).chip
        room, whole = problem.capacity_bytes(device), device.memory_capacity_bytes
        if need.total <= room * (1 + 1e-9):
            continue
        own = {"stage": stage, "chip": chip, "need": need.total / GIB, "room": room / GIB}
        if need.total > whole:
            yield later("stage {stage} on {chip} needs {need:.2f} GiB, {room:.2f} GiB are free for it", **own)
        else:  # it would fit if plans had no margin to keep
            yield later(
                "stage {stage} on {chip} needs {need:.2f} GiB, {room:.2f} GiB are free for it: all {whole:.2f} GiB "
                "less the margin (cluster.memory_margin)",
                **own,
                whole=whole / GIB,
            )
