"""The constraint families, one function each; a rule of the same name in rules.py says the same without a solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ortools.sat.python import cp_model

from cpsolver.compile.data import PlanData
from cpsolver.compile.variables import DEGREES, NO_CHIP, Variables
from cpsolver.problem import Problem

Family = Callable[[cp_model.CpModel, Problem, Sequence[PlanData], Variables], None]


def degrees(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """Degrees, flags and chips by position are those of one of the plans: a table of the legal combinations."""
    positions = len(v.chip)
    rows = [(i, *plan.degrees, *plan.chips, *[NO_CHIP] * (positions - plan.pp)) for i, plan in enumerate(plans)]
    model.add_allowed_assignments([v.which, *(v.degrees[name] for name in DEGREES), *v.chip], rows)
    for i, pick in enumerate(v.pick):
        model.add(v.which == i).only_enforce_if(pick)
        model.add(v.which != i).only_enforce_if(~pick)


def layers(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """All layers are placed, at least one in every chunk, equally many in the chunks of a stage."""
    model.add(sum(v.layers) == problem.model.layers)
    for plan, pick in zip(plans, v.pick, strict=True):
        for p in range(len(v.chunk)):
            model.add(v.layers[p] == plan.vpp * v.chunk[p]).only_enforce_if(pick)
            least, most = (1, plan.longest) if p < plan.pp else (0, 0)
            model.add_linear_constraint(v.chunk[p], least, most).only_enforce_if(pick)


def layer_split(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """Equal stages, everywhere or in each chip type, where the spec asks for it."""
    split = problem.spec.search.layer_split
    if split == "auto":
        return
    for plan, pick in zip(plans, v.pick, strict=True):
        groups = [list(range(plan.pp))] if split == "even" else [plan.places(chip) for chip in plan.options]
        for places in groups:
            for p in places[1:]:
                model.add(v.chunk[p] == v.chunk[places[0]]).only_enforce_if(pick)


def _options(problem: Problem, plan: PlanData, index: int, v: Variables) -> Iterator[tuple[int, int, int]]:
    """(position, chip, place among the chip's stages) of every stage of a plan."""
    for chip in plan.options:
        for place, position in enumerate(plan.places(chip)):
            yield position, chip, place


def _choice(problem: Problem, v: Variables, plan: int, position: int, chip: int) -> cp_model.IntVar:
    by_stage = problem.spec.search.recompute_scope == "stage"
    return v.option[plan][position if by_stage else chip]


def memory(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """No chunk is longer than what fits the device's memory under the recomputation chosen."""
    for i, (plan, pick) in enumerate(zip(plans, v.pick, strict=True)):
        for position, chip, place in _options(problem, plan, i, v):
            fits = plan.fits[chip][place].tolist()
            most = model.new_int_var(min(fits), max(fits), f"most_{i}_{position}")
            model.add_element(_choice(problem, v, i, position, chip), fits, most)
            model.add(v.chunk[position] <= most).only_enforce_if(pick)


def recompute(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """A chunk recomputes as many layers as its option says, or all it has; selective, all their attention cores.

    Stated for every plan, taken or not: the numbers of one that is not taken are free and count for nothing.
    """
    for i, plan in enumerate(plans):
        for position, chip, _ in _options(problem, plan, i, v):
            options, choice = plan.options[chip], _choice(problem, v, i, position, chip)
            asked = [option.repeats for option in options]
            wanted = model.new_int_var(min(asked), max(asked), f"wanted_{i}_{position}")
            model.add_element(choice, asked, wanted)
            model.add_min_equality(v.repeats[i][position], [wanted, v.chunk[position]])
            chosen = [index for index, option in enumerate(options) if option.kind == "selective"]
            if not chosen:
                model.add(v.selected[i][position] == 0)
                continue
            selective = model.new_bool_var(f"selective_{i}_{position}")
            model.add(choice == chosen[0]).only_enforce_if(selective)
            model.add(choice != chosen[0]).only_enforce_if(~selective)
            model.add(v.selected[i][position] == v.chunk[position]).only_enforce_if(selective)
            model.add(v.selected[i][position] == 0).only_enforce_if(~selective)


def pin(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """The split of the layers that the user fixed, or ruled out (degrees and chips are in the table already)."""
    pinned, banned = problem.spec.search.pin.layers, problem.spec.search.forbid.layers
    if pinned is not None:
        for var, count in zip(v.layers, pinned, strict=False):
            model.add(var == count)
    if banned is not None and len(banned) <= len(v.layers):
        padded = (*banned, *[0] * (len(v.layers) - len(banned)))
        model.add_forbidden_assignments(v.layers, [padded])


FAMILIES: dict[str, Family] = {
    "degrees": degrees,
    "layers": layers,
    "layer_split": layer_split,
    "memory": memory,
    "recompute": recompute,
    "pin": pin,
}
"""In the order in which they enter the model."""
