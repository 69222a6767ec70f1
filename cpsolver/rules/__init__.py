"""The problem statement without a solver: every rule a plan must keep, each (problem, strategy) -> violations.

The solver's side of a rule has the same name: a filter in search/filters.py, a pattern in search/arrangements.py or a
constraint family in search/compile/constraints.py. Rules stand by theme in the modules here, where the decorator `rule`
makes them known (docs/adding-a-rule.md).

Imports from evaluation and what stands before it; never from search.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from cpsolver.evaluation.evaluate import evaluate
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.plans.dimensions import SIZES
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.rules.base import REGISTERED, Rule, Scope, Violation

__all__ = ["RULES", "STRUCTURE", "Rule", "Violation", "sound_evaluation", "structure_violations", "violations"]

_THEMES = ("layout", "pins", "model", "sharding", "pipeline", "capacity")
"""The modules here, in the order in which violations are listed."""

_MEMORY = "memory"
"""The rule that is asked last, and of sound plans alone."""

for _theme in _THEMES:
    import_module(f"cpsolver.rules.{_theme}")


def _of(*scopes: Scope) -> dict[str, Rule]:
    return {rule.name: rule for scope in scopes for rule in REGISTERED if rule.scope == scope}


_SIZES = _of("sizes")
STRUCTURE = _of("sizes", "structure")
"""Rules that a plan must keep for its time and memory to mean anything."""
RULES = _of("sizes", "structure", "plan")
"""Every rule by name."""


def structure_violations(problem: Problem, strategy: Strategy) -> list[Violation]:
    """Violations of the rules of STRUCTURE: with any of these a plan cannot be evaluated."""
    return _broken(_SIZES if _sizes_are_wrong(strategy) else STRUCTURE, problem, strategy)


def violations(problem: Problem, strategy: Strategy, evaluation: Evaluation | None = None) -> list[Violation]:
    """Every violation of every rule; memory is judged only for plans that are structurally sound.

    `evaluation`: the plan's, where it is known, which spares predicting its memory once more.
    """
    broken = structure_violations(problem, strategy)
    if _sizes_are_wrong(strategy):
        return broken
    rest = {name: rule for name, rule in RULES.items() if name not in STRUCTURE and name != _MEMORY}
    found = broken + _broken(rest, problem, strategy)
    if not broken:
        from cpsolver.rules.capacity import too_full  # its theme comes last

        needed = None if evaluation is None else [stage.memory for stage in evaluation.stages]
        found += (Violation(_MEMORY, message) for message in too_full(problem, strategy, needed))
    return found


def sound_evaluation(problem: Problem, strategy: Strategy) -> Evaluation:
    """What a plan gives. Raises InputError for one whose sizes do not add up, of which a rule of STRUCTURE tells."""
    wrong = structure_violations(problem, strategy)
    if wrong:
        raise InputError([Trouble("", violation.text) for violation in wrong])
    return evaluate(problem, strategy)


def _broken(rules: Mapping[str, Rule], problem: Problem, strategy: Strategy) -> list[Violation]:
    return [Violation(name, message) for name, rule in rules.items() for message in rule(problem, strategy)]


def _sizes_are_wrong(s: Strategy) -> bool:
    """A size below 1, which nothing can be divided by; a mesh's micro batch is one where its dp divides no round."""
    if any(getattr(s, name) < 1 for name in SIZES) or any(min(vars(mesh).values()) < 1 for mesh, _ in s.meshes):
        return True
    return any(s.round % mesh.dp for mesh, _ in s.meshes)
