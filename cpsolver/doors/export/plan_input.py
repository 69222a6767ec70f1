"""The plan that is exported: out of a file of `solve --json` or a strategy file, checked against the spec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cpsolver import rules
from cpsolver.inputs.document import load_yaml
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_from

_SAME = ("model", "num_gpus", "gpus_per_node", "global_batch_size", "sequence_length", "precision")


def load_plan(path: str, number: int, problem: Problem) -> Strategy:
    """Plan `number`, from 1, of a file of `solve --json`, or the plan of a strategy file.

    Raises InputError for a file that cannot be read, has no such plan, is of another spec, or whose plan does not
    add up (layers, degrees, batch, chips).
    """
    document = load_yaml(path, collect=True)
    plans = document.data.get("plans")
    found = list(_spec_troubles(document.data.get("problem"), problem))
    if isinstance(plans, list):
        if number > len(plans):
            told = f"1 to {len(plans)}" if plans else "none: the file has no plan"
            found.append(Trouble("--plan-rank", "is no plan of the file", number, told))
        if found:
            raise InputError([replace(trouble, file=path) for trouble in found])
        document = replace(document, data={**document.data, "plans": [plans[number - 1]]})
    elif number > 1:
        raise InputError(
            Trouble("--plan-rank", "is no plan of the file", number, "1: the file holds one plan", file=path)
        )
    plan = strategy_from(document, problem)
    wrong = rules.structure_violations(problem, plan)
    if wrong:
        raise InputError([Trouble("", str(violation), file=path) for violation in wrong])
    return plan


def _spec_troubles(told: Any, problem: Problem) -> Iterator[Trouble]:
    """What the file says of its own problem, where the spec says otherwise."""
    from cpsolver.doors.report.document import problem_document

    if not isinstance(told, Mapping):
        return
    here = problem_document(problem)
    for name in _SAME:
        if name in told and told[name] != here[name]:
            yield Trouble(f"problem.{name}", "is of another spec", told[name], f"{here[name]}, as the spec has it")
    chips = told.get("chips")
    unknown = sorted(set(chips) - set(problem.chip_names)) if isinstance(chips, Mapping) else []
    if unknown:
        yield Trouble("problem.chips", "is of another spec", unknown, ", ".join(problem.chip_names))
