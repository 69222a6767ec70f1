"""The constraint families, one function each, and the objective.

A rule of the same name in cpsolver.rules says what a family does without a solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import lcm

from ortools.sat.python import cp_model

from cpsolver.cost.shard import Ints
from cpsolver.plans.dimensions import ROW
from cpsolver.problem.problem import Problem
from cpsolver.search.bounds.coefficients import PassKind
from cpsolver.search.compile.data import PlanData
from cpsolver.search.compile.variables import NO_CHIP, StageVars, Variables

Family = Callable[[cp_model.CpModel, Problem, Sequence[PlanData], Variables], None]


def degrees(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """Degrees, flags and chips by position are those of one of the plans: a table of the legal combinations."""
    chips = [position.chip for position in v.positions]
    rows = [(i, *plan.degrees, *plan.chips, *[NO_CHIP] * (len(chips) - plan.pp)) for i, plan in enumerate(plans)]
    model.add_allowed_assignments([v.which, *(v.degrees[name] for name in ROW), *chips], rows)
    for i, pick in enumerate(v.pick):
        model.add(v.which == i).only_enforce_if(pick)
        model.add(v.which != i).only_enforce_if(~pick)


def layers(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """All layers are placed, at least one in every chunk, equally many in the chunks of a stage; in the first of all
    the embedding, in the last the head may stand in the place of some.
    """
    model.add(sum(v.layers) == problem.model.layers)
    for plan, pick in zip(plans, v.pick, strict=True):
        for p, at in enumerate(v.positions):
            slot = plan.slot(p) if p < plan.pp else 0
            model.add(at.layers == plan.vpp * at.chunk - slot).only_enforce_if(pick)
            least, most = (plan.least(p), plan.longest) if p < plan.pp else (0, 0)
            model.add_linear_constraint(at.chunk, least, most).only_enforce_if(pick)
    if any(plan.odd is not None for plan in plans):
        model.add(v.start[0] == 0)
        for p, chunk in enumerate(v.chunk):
            model.add(v.start[p + 1] == v.start[p] + chunk)
    for plan, stages in zip(plans, v.stages, strict=True):
        if plan.odd is not None:
            for stage in stages:
                own = plan.by_chip[stage.chip]
                _kinds_in_place(model, stage.odd, plan.odd, stage, v, problem.model.layers + 2)
                _kinds_in_place(model, stage.beyond_mean, own.beyond_mean, stage, v, problem.model.layers + 2)


def _kinds_in_place(
    model: cp_model.CpModel, var: cp_model.IntVar, table: Ints, stage: StageVars, v: Variables, total: int
) -> None:
    """What a stage's layers have in all follows from where it begins and ends: `table` is what those before a place
    have.

    Stated for every plan, taken or not; the table goes on level beyond a plan's last layer.
    """
    level = [*table.tolist(), *[int(table[-1])] * (total + 1 - len(table))]
    ends = []
    for side in (stage.position, stage.position + 1):
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
        groups = [tuple(range(plan.pp))] if split == "even" else [own.places for own in plan.by_chip.values()]
        for places in groups:
            for p in places[1:]:
                model.add(v.layers[p] == v.layers[places[0]]).only_enforce_if(pick)


def launcher(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """Stages are equal, or all but the first and the last, and all recompute alike, where the launcher asks for it.

    The tie of their options is stated for every plan, taken or not.
    """
    for i, (plan, pick) in enumerate(zip(plans, v.pick, strict=True)):
        equal = {"none": v.chunk[: plan.pp], "first_last": v.chunk[1 : plan.pp - 1], "any": []}[plan.split]
        for chunk in equal[1:]:
            model.add(chunk == equal[0]).only_enforce_if(pick)
        ties = [own.tie for own in plan.by_chip.values()]
        if any(tie.any() for tie in ties):
            shared = model.new_int_var(0, max(int(tie.max(initial=0)) for tie in ties), f"tie_{i}")
            for p in plan.deciding(problem.recompute_by_stage):
                stage = v.stages[i][p]
                model.add_element(stage.option, plan.by_chip[stage.chip].tie.tolist(), shared)


def memory(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """No chunk is longer than what fits the device's memory under the recomputation chosen."""
    for i, (plan, pick) in enumerate(zip(plans, v.pick, strict=True)):
        for stage in v.stages[i]:
            own, choice = plan.by_chip[stage.chip], stage.option
            fits = own.most[stage.place].tolist()
            if plan.odd is not None:
                by_odd = own.fits[stage.place]
                fits = by_odd.ravel().tolist()
                choice = model.new_int_var(0, len(fits) - 1, f"option_and_odd_{i}_{stage.position}")
                model.add(choice == by_odd.shape[1] * stage.option + stage.odd)
            most = model.new_int_var(min(fits), max(fits), f"most_{i}_{stage.position}")
            model.add_element(choice, fits, most)
            model.add(stage.chunk <= most).only_enforce_if(pick)


def recompute(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """A chunk recomputes as many layers as its option says, or all it has; selective, some modules of all of them.

    Stated for every plan, taken or not: the numbers of one that is not taken are free and count for nothing.
    """
    for i, plan in enumerate(plans):
        for stage in v.stages[i]:
            own = plan.by_chip[stage.chip]
            if own.steps.any():
                model.add_element(stage.option, own.steps.tolist(), stage.extra)
            else:
                model.add(stage.extra == 0)
            asked = own.recomputed.tolist()
            wanted = model.new_int_var(min(asked), max(asked), f"wanted_{i}_{stage.position}")
            model.add_element(stage.option, asked, wanted)
            model.add_min_equality(stage.recomputed, [wanted, stage.chunk])
            _modules(model, own.layer_steps.tolist(), stage)


def _modules(model: cp_model.CpModel, steps: list[int], stage: StageVars) -> None:
    """Every layer of a chunk takes the steps that the chosen option's modules add."""
    costly = [index for index, of_option in enumerate(steps) if of_option]
    if not costly:
        model.add(stage.modules == 0)
        return
    rest = sorted(set(range(len(steps))) - set(costly))
    chosen = [model.new_bool_var(f"{stage.modules.name}_{index}") for index in costly]
    without = model.new_bool_var(f"{stage.modules.name}_none")
    model.add_exactly_one([*chosen, without])
    for index, literal in zip(costly, chosen, strict=True):
        model.add(stage.option == index).only_enforce_if(literal)
        model.add(stage.modules == steps[index] * stage.chunk).only_enforce_if(literal)
    model.add_linear_expression_in_domain(stage.option, cp_model.Domain.from_values(rest)).only_enforce_if(without)
    model.add(stage.modules == 0).only_enforce_if(without)


def pin(model: cp_model.CpModel, problem: Problem, plans: Sequence[PlanData], v: Variables) -> None:
    """The split of the layers that the user fixed, or ruled out (degrees and chips are in the table already)."""
    pinned, banned = problem.spec.search.pin.layers, problem.spec.search.forbid.layers
    for i, (plan, pick) in enumerate(zip(plans, v.pick, strict=True)):
        wanted = None if pinned is None else plan.held(pinned)
        if pinned is not None and wanted is None:
            model.add(pick == 0)
        for var, count in zip(v.layers, wanted or (), strict=False):
            model.add(var == count).only_enforce_if(pick)
        unwanted = None if banned is None else plan.held(banned)
        if unwanted is not None and len(unwanted) <= len(v.layers):
            padded = (*unwanted, *[0] * (len(v.layers) - len(unwanted)))
            model.add_forbidden_assignments([v.which, *v.layers], [(i, *padded)])


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


# The objective.


def step_time(
    model: cp_model.CpModel, plans: Sequence[PlanData], v: Variables, most: int
) -> tuple[cp_model.LinearExprT, int]:
    """The expression to minimise, and by how much it is a multiple of the step time (so that 1/vpp is whole).

    Step time: (m - 1/vpp) * slowest stage + sum of the stages / vpp + what follows the pipeline on the worst stage;
    or what a `StepForm` has in place of the first two. `most` is the largest step time of
    interest, in integer steps.
    """
    factor = lcm(*(plan.multiple for plan in plans))
    for i, (plan, pick) in enumerate(zip(plans, v.pick, strict=True)):
        for p, at in enumerate(v.positions):
            if p >= plan.pp:
                model.add(at.time == 0).only_enforce_if(pick)
                continue
            model.add(at.time == _stage_time(plan, v.stages[i][p])).only_enforce_if(pick)
            follows = cp_model.LinearExpr.weighted_sum([at.chunk], [int(plan.after_layer[p])])
            model.add(v.after >= follows + int(plan.after_fixed[p])).only_enforce_if(pick)
    for at in v.positions:
        model.add(v.slowest >= at.time)
    objectives = [_objectives(model, plan, v, i, factor) for i, plan in enumerate(plans)]
    if len(plans) == 1 and len(objectives[0]) == 1:
        return objectives[0][0], factor
    total = model.new_int_var(0, factor * most, "objective")
    for of_plan, pick in zip(objectives, v.pick, strict=True):
        for objective in of_plan:
            model.add(total >= objective).only_enforce_if(pick)
    return total, factor


def _objectives(
    model: cp_model.CpModel, plan: PlanData, v: Variables, index: int, factor: int
) -> list[cp_model.LinearExprT]:
    """Expressions of which the largest is a plan's objective."""
    form = plan.form
    if form is None:
        return [_objective(plan, v, factor)]
    times = [at.time for at in v.positions[: plan.pp]]
    parts: list[list[cp_model.LinearExprT]] = [
        [*times],
        *([_pass_steps(model, plan, v, stage, name, index) for stage in v.stages[index]] for name in plan.passes),
    ]
    share, terms = factor // form.multiple, [*chain(*parts), v.after]
    chains = [share * each[:, : len(parts)].T.ravel() for each in form.chains]
    works = [cp_model.LinearExpr.weighted_sum([time, v.after], [plan.microbatches * factor, factor]) for time in times]
    return [*works, *(cp_model.LinearExpr.weighted_sum(terms, [*each.tolist(), factor]) for each in chains)]


def _pass_steps(
    model: cp_model.CpModel, plan: PlanData, v: Variables, stage: StageVars, kind: PassKind, index: int
) -> cp_model.LinearExprT:
    """What a StepForm asks of a stage; free where another plan is taken, whose chunks may be longer than any of this
    one."""
    at, most, pick, passes = stage.position, plan.longest_stage, v.pick[index], plan.passes[kind]
    if plan.odd is None and not passes.layer[at]:
        return int(passes.fixed[at])
    steps = cp_model.LinearExpr.weighted_sum([stage.chunk], [int(passes.layer[at])]) + int(passes.fixed[at])
    name = f"{kind}_{index}_{at}"
    found = model.new_int_var(-most, most, name)
    if plan.odd is None:
        model.add(found == steps).only_enforce_if(pick)
        return found
    table = passes.beyond_mean[stage.chip]
    span = int(table.max() - table.min())
    beyond = model.new_int_var(-span, span, f"{name}_beyond")
    _kinds_in_place(model, beyond, table, stage, v, v.places)
    model.add(found == steps + beyond).only_enforce_if(pick)
    return found


def _stage_time(plan: PlanData, stage: StageVars) -> cp_model.LinearExprT:
    variables = [stage.chunk, stage.recomputed, stage.modules, stage.beyond_mean, stage.extra]
    factors = [int(plan.layer[stage.position]), int(plan.recompute[stage.position]), 1, 1, 1]
    return cp_model.LinearExpr.weighted_sum(variables, factors) + int(plan.fixed[stage.position])


def _objective(plan: PlanData, v: Variables, factor: int) -> cp_model.LinearExprT:
    share = factor // plan.vpp
    variables = [v.slowest, *(at.time for at in v.positions[: plan.pp]), v.after]
    factors = [plan.microbatches * factor - share, *[share] * plan.pp, factor]
    return cp_model.LinearExpr.weighted_sum(variables, factors)
