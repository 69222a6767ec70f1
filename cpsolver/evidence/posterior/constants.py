"""The constants that a user's own runs may change: which a problem has, and the problem with them moved.

A position counts standard deviations of the prior from the published value: 0 is what the planner takes without runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Literal

from cpsolver.problem.problem import Problem
from cpsolver.profiles.constants import ConstantLayer, replacements, uncertain
from cpsolver.profiles.stack import Constant, Stack
from hw_specs import Chip

Kind = Literal["chips", "stacks", "memory"]


@dataclass(frozen=True)
class UncertainConstant:
    """A constant of one chip (a factor on its efficiency) or stack (its value). `start`: the published value.

    `kind`: chips and stacks move step times, memory moves bytes. `spread`: one standard deviation as a logarithm,
    of the odds for a `share`, of one plus the value for `more_than_one`.
    """

    kind: Kind
    group: str
    name: str
    start: float
    spread: float
    share: bool = False
    more_than_one: bool = False
    why: str = ""

    @property
    def key(self) -> str:
        """Its name in files: group and constant."""
        return f"{self.group}: {self.name}"

    def value(self, position: float) -> float:
        """The constant at a position."""
        move = exp(position * self.spread)
        if self.share:
            odds = self.start / (1.0 - self.start) * move
            return odds / (1.0 + odds)
        if self.more_than_one:
            return max(0.0, (1.0 + self.start) * move - 1.0)
        return self.start * move

    def position(self, value: float) -> float:
        """Where a value lies: the other way round of `value`."""
        if self.share:
            return (log(value / (1.0 - value)) - log(self.start / (1.0 - self.start))) / self.spread
        if self.more_than_one:
            return log((1.0 + value) / (1.0 + self.start)) / self.spread
        return log(value / self.start) / self.spread


def uncertain_constants(problems: Iterable[Problem]) -> tuple[UncertainConstant, ...]:
    """All that may change in these problems, each once: of their chips, then of their stacks."""
    found: dict[tuple[str, str], UncertainConstant] = {}
    for problem in problems:
        for each in (*_of_chips(problem), *_of_stack(problem)):
            found.setdefault((each.group, each.name), each)
    return tuple(sorted(found.values(), key=lambda each: ("chips", "stacks", "memory").index(each.kind)))


def _of_chips(problem: Problem) -> Iterable[UncertainConstant]:
    for supply in problem.supplies:
        for name, entry in uncertain()["chips"].items():
            yield UncertainConstant("chips", supply.name, name, 1.0, **entry)


def _of_stack(problem: Problem) -> Iterable[UncertainConstant]:
    kinds: tuple[Kind, ...] = ("stacks", "memory")
    for kind in kinds:
        for name, entry in uncertain()[kind].items():
            start = float(getattr(problem.stack, name))
            if start > 0.0 and not (entry.get("share", False) and start >= 1.0):
                yield UncertainConstant(kind, problem.stack.name, name, start, **entry)


def moved(problem: Problem, constants: Sequence[UncertainConstant], positions: Iterable[float], source: str) -> Problem:
    """The problem with its constants at these positions; `source` says where the stack's come from."""
    values = {
        (each.group, each.name): each.value(float(at)) for each, at in zip(constants, positions, strict=True) if at
    }
    return problem.with_constants(Values(values, source))


@dataclass(frozen=True)
class Values(ConstantLayer):
    """Constants by (chip or stack, name); a chip's are factors on its efficiencies. `source`: of a stack's."""

    by_name: Mapping[tuple[str, str], float]
    source: str

    def factors(self, chip: Chip) -> Iterable[tuple[str, float]]:
        """See ConstantLayer."""
        return self._of(chip.name).items()

    def values(self, stack: Stack) -> Mapping[str, Constant]:
        """See ConstantLayer."""
        return replacements(self._of(stack.name), self.source)

    def _of(self, group: str) -> dict[str, float]:
        return {name: value for (owner, name), value in self.by_name.items() if owner == group}
