"""Rules on recomputation and on the memory that it saves."""

from __future__ import annotations

from collections.abc import Iterator

from cpsolver.cost.modules import applicable
from cpsolver.evaluation.evaluate import stage_memory
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
            yield f"{group.chip}: {len(amounts)} recompute numbers for {group.num_stages} stages"
        wrong = [n for n in amounts if (n < 1 if group.recompute in ("block", "uniform") else n != 0)]
        if wrong:
            yield f"{group.chip}: recompute {group.recompute} with {wrong[0]} layers"
        if group.recompute != "selective" and group.modules:
            yield f"{group.chip}: recompute {group.recompute} with modules {listed(group.modules)}"
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
                yield f"{chip}: stages recompute differently ({sorted(choices)}), recompute_scope is chip"


def _modules(problem: Problem, s: Strategy) -> Iterator[str]:
    """Modules that the model's layers do not have, or the launcher does not know."""
    known = applicable(problem)
    used = {name for group in s.groups if group.recompute == "selective" for name in group.modules}
    for name in sorted(used - set(known)):
        yield f"recompute module {name} is not one of this model and launcher: {listed(known)}"


def _beside_functions(problem: Problem, s: Strategy) -> Iterator[str]:
    """MindSpeed 028de58, docs/zh/features/activation-function-recompute.md and arguments.py, validate_args_wrapper."""
    kinds = {group.recompute for group in s.groups} - {*BESIDE_FUNCTIONS}
    training = problem.spec.training
    switches = {
        "recompute_activation_function": ("activation functions are", training.recompute_activation_function),
        "moe_zero_memory": ("experts' activations are", training.moe_zero_memory is not None),
    }
    for name, (what, on) in switches.items():
        if on and kinds:
            told = f"{what} made again beside recomputation of kind none or block only"
            yield f"{told} (training.{name}): it is {sorted(kinds)[0]}"


@rule(
    "layers' activations wait on the host without a pipeline (pp 1) and without recomputation only",
    briefly=lambda *_: "offload_layers needs pp 1 and no recomputation",
)
def layer_offload(problem: Problem, s: Strategy) -> Iterator[str]:
    """Megatron's conditions on --cpu-offloading-num-layers (core/transformer/transformer_config.py)."""
    layers = problem.spec.training.offload_layers
    if not layers:
        return
    if s.pp > 1:
        yield f"activations of {layers} layers wait on the host without a pipeline only: pp is {s.pp}, and must be 1"
    kinds = [kind for kind in s.recompute if kind != "none"]
    if kinds:
        yield f"activations of {layers} layers wait on the host without recomputation only: it is {kinds[0]}"


@rule("every stage fits its device's memory less the margin")
def memory(problem: Problem, s: Strategy) -> Iterator[str]:
    for stage, (chip, need) in enumerate(zip(s.stage_chips, stage_memory(problem, s), strict=True)):
        room = problem.capacity_bytes(problem.supply(chip).chip)
        if need.total > room * (1 + 1e-9):
            yield f"stage {stage} on {chip} needs {need.total / GIB:.2f} GiB, {room / GIB:.2f} GiB are free for it"
