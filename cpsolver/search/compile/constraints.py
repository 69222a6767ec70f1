"""The constraint families, one function each; a rule of the same name in rules.py says the same without a solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ortools.sat.python import cp_model

from cpsolver.plans.dimensions import ROW
from cpsolver.problem.problem import Problem
from cpsolver.search.compile.data import Kinds, PlanData
from cpsolver.search.compile.variables import NO_CHIP, Variables

Family = Callable[[cp_model.CpModel, Problem, Sequence[PlanData], Variables], None]


def degrees(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """Degrees, flags and chips by position are those of one of the plans: a table of the legal combinations."""
    positions = len(v.chip)
    rows = [(i, *plan.degrees, *plan.chips, *[NO_CHIP] * (positions - plan.pp)) for i, plan in enumerate(plans)]
    model.add_allowed_assignments([v.which, *(v.degrees[name] for name in ROW), *v.chip], rows)
    for i, pick in enumerate(v.pick):
        model.add(v.which == i).only_enforce_if(pick)
        model.add(v.which != i).only_enforce_if(~pick)


def layers(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """All layers are placed, at least one in every chunk, equally many in the chunks of a stage; on the ends the
    embedding and the head may stand in the place of one.
    """
    model.add(sum(v.layers) == problem.model.layers)
    for plan, pick in zip(plans, v.pick, strict=True):
        for p in range(len(v.chunk)):
            slot = plan.slot(p) if p < plan.pp else 0
            model.add(v.layers[p] == plan.vpp * v.chunk[p] - slot).only_enforce_if(pick)
            least, most = (1, plan.longest) if p < plan.pp else (0, 0)
            model.add_linear_constraint(v.chunk[p], least, most).only_enforce_if(pick)
    if any(plan.kinds is not None for plan in plans):
        model.add(v.start[0] == 0)
        for p, chunk in enumerate(v.chunk):
            model.add(v.start[p + 1] == v.start[p] + chunk)
    for i, plan in enumerate(plans):
        if plan.kinds is not None:
            _kinds_in_place(model, plan, plan.kinds, i, v, problem.model.layers + 2)


def _kinds_in_place(model: cp_model.CpModel, plan: PlanData, kinds: Kinds, i: int, v: Variables, total: int) -> None:
    """Which kinds of layers a stage holds follows from where it begins and ends.

    Stated for every plan, taken or not; the tables go on level beyond a plan's last layer.
    """
    for p in range(plan.pp):
        for var, table in ((v.odd[i][p], kinds.odd), (v.unlike[i][p], kinds.before[plan.chips[p]])):
            level = [*table.tolist(), *[int(table[-1])] * (total + 1 - len(table))]
            ends = []
            for side in (p, p + 1):
                end = model.new_int_var(min(level), max(level), f"{var.name}_at_{side}")
                model.add_element(v.start[side], level, end)
                ends.append(end)
            model.add(var == ends[1] - ends[0])


def layer_split(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """Equal stages, everywhere or in each chip type, where the spec asks for it."""
    split = problem.spec.search.layer_split
    if split == "auto":
        return
    for plan, pick in zip(plans, v.pick, strict=True):
        groups = [list(range(plan.pp))] if split == "even" else [plan.places(chip) for chip in plan.options]
        for places in groups:
            for p in places[1:]:
                model.add(v.layers[p] == v.layers[places[0]]).only_enforce_if(pick)


def launcher(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """Stages are equal, or all but the first and the last, and all recompute one way, where the launcher asks for it.

    The way is stated for every plan, taken or not.
    """
    for i, (plan, pick) in enumerate(zip(plans, v.pick, strict=True)):
        alike = {"none": v.chunk[: plan.pp], "first_last": v.chunk[1 : plan.pp - 1], "any": []}[plan.split]
        for chunk in alike[1:]:
            model.add(chunk == alike[0]).only_enforce_if(pick)
        if any(any(ways) for ways in plan.ways.values()):
            way = model.new_int_var(0, max(max(ways, default=0) for ways in plan.ways.values()), f"way_{i}")
            for key, option in v.option[i].items():
                chip = plan.chips[key] if problem.recompute_by_stage else key
                model.add_element(option, list(plan.ways[chip]), way)


def _options(problem: Problem, plan: PlanData, index: int, v: Variables) -> Iterator[tuple[int, int, int]]:
    """(position, chip, place among the chip's stages) of every stage of a plan."""
    for chip in plan.options:
        for place, position in enumerate(plan.places(chip)):
            yield position, chip, place


def _choice(problem: Problem, v: Variables, plan: int, position: int, chip: int) -> cp_model.IntVar:
    return v.option[plan][position if problem.recompute_by_stage else chip]


def memory(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """No chunk is longer than what fits the device's memory under the recomputation chosen."""
    for i, (plan, pick) in enumerate(zip(plans, v.pick, strict=True)):
        for position, chip, place in _options(problem, plan, i, v):
            choice = _choice(problem, v, i, position, chip)
            fits = plan.fits[chip][place].tolist()
            if plan.kinds is not None:
                by_odd = plan.kinds.fits[chip][place]
                fits, both = by_odd.ravel().tolist(), choice
                choice = model.new_int_var(0, len(fits) - 1, f"choice_and_odd_{i}_{position}")
                model.add(choice == by_odd.shape[1] * both + v.odd[i][position])
            most = model.new_int_var(min(fits), max(fits), f"most_{i}_{position}")
            model.add_element(choice, fits, most)
            model.add(v.chunk[position] <= most).only_enforce_if(pick)


def recompute(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """A chunk recomputes as many layers as its option says, or all it has; selective, some modules of all of them.

    Stated for every plan, taken or not: the numbers of one that is not taken are free and count for nothing.
    """
    for i, plan in enumerate(plans):
        for position, chip, _ in _options(problem, plan, i, v):
            options, choice = plan.options[chip], _choice(problem, v, i, position, chip)
            if plan.extra[chip].any():
                model.add_element(choice, plan.extra[chip].tolist(), v.extra[i][position])
            else:
                model.add(v.extra[i][position] == 0)
            asked = [option.repeats for option in options]
            wanted = model.new_int_var(min(asked), max(asked), f"wanted_{i}_{position}")
            model.add_element(choice, asked, wanted)
            model.add_min_equality(v.repeats[i][position], [wanted, v.chunk[position]])
            _again(model, plan.again[chip].tolist(), choice, v.again[i][position], v.chunk[position])


def _again(
    model: cp_model.CpModel, steps: list[int], choice: cp_model.IntVar, again: cp_model.IntVar, chunk: cp_model.IntVar
) -> None:
    """Every layer of a chunk takes the chosen option's steps."""
    costly = [index for index, each in enumerate(steps) if each]
    if not costly:
        model.add(again == 0)
        return
    rest = sorted(set(range(len(steps))) - set(costly))
    chosen = [model.new_bool_var(f"{again.name}_{index}") for index in costly]
    plain = model.new_bool_var(f"{again.name}_none")
    model.add_exactly_one([*chosen, plain])
    for index, literal in zip(costly, chosen, strict=True):
        model.add(choice == index).only_enforce_if(literal)
        model.add(again == steps[index] * chunk).only_enforce_if(literal)
    model.add_linear_expression_in_domain(choice, cp_model.Domain.from_values(rest)).only_enforce_if(plain)
    model.add(again == 0).only_enforce_if(plain)


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
    "launcher": launcher,
    "memory": memory,
    "recompute": recompute,
    "pin": pin,
}
"""In the order in which they enter the model."""
