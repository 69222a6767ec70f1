"""What a rule is, how it comes to be known, and how it writes numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from math import prod
from typing import Literal

from cpsolver.inputs.language import capital, later, say
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

Scope = Literal["sizes", "structure", "plan"]
"""sizes: can be asked whatever the sizes are, by which all others divide; sizes and structure: a plan must keep it for
its time and memory to mean anything; plan: all others."""
Check = Callable[[Problem, Strategy], Iterator[str]]
InShort = Callable[[Problem, Set[str]], str]


@dataclass(frozen=True)
class Violation:
    """One broken rule, with the numbers that break it: `message` in English, `str` in the language spoken."""

    rule: str
    message: str

    @property
    def text(self) -> str:
        """Both, for `say`."""
        return later("{rule}: {message}", rule=self.rule, message=self.message)

    def __str__(self) -> str:
        return say(self.text)


@dataclass(frozen=True)
class Rule:
    """A rule: asked of (problem, plan), it yields a message (`later`) for everything in the plan that breaks it.

    `words`: the rule in a few words, without a problem's numbers. `briefly`: with the
    numbers of a problem, as much of it as bears on some decisions. `by_mesh`: where stages have degrees of their own
    it is asked of the plan with each mesh's degrees.
    """

    name: str
    check: Check
    words: str
    scope: Scope
    briefly: InShort
    by_mesh: bool = False

    def __call__(self, problem: Problem, strategy: Strategy) -> Iterator[str]:
        """What of the plan breaks it."""
        if not (self.by_mesh and strategy.unequal):
            return self.check(problem, strategy)
        return (
            later("mesh on {chip}: {text}", chip=groups[0].chip, text=text)
            for mesh, groups in strategy.meshes
            for text in self.check(problem, strategy.of(mesh))
        )

    def in_short(self, problem: Problem, asked: Set[str]) -> str:
        """What the rule asks for; `asked`: the decisions that are pinned or banned against it."""
        words = capital(say(self.words))
        return self.briefly(problem, asked) or say("rule {name}: {words}", name=self.name, words=words)


REGISTERED: list[Rule] = []
"""Every rule in the order in which the modules of themes define them."""


def rule(
    words: str, scope: Scope = "plan", briefly: InShort = lambda *_: "", by_mesh: bool = False
) -> Callable[[Check], Rule]:
    """Register the function below as the rule of its name, which `words` say; its docstring has what is beside that."""

    def register(check: Check) -> Rule:
        made = Rule(check.__name__, check, words, scope, briefly, by_mesh)
        REGISTERED.append(made)
        return made

    return register


def chosen(texts: Mapping[str, str], asked: Set[str]) -> str:
    """The texts of the decisions that are asked for; all of them where none is."""
    bearing = [text for name, text in texts.items() if name in asked] or list(texts.values())
    return say(", ").join(dict.fromkeys(bearing))


def listed(values: object) -> str:
    """A tuple as people write it; anything else as it is."""
    return ", ".join(str(value) for value in values) if isinstance(values, tuple) else str(values)


def product(sizes: dict[str, int]) -> str:
    """Sizes with their names and their product: tp 2 x pp 4 = 8."""
    return f"{' x '.join(f'{name} {size}' for name, size in sizes.items())} = {prod(sizes.values())}"


def too_small(sizes: dict[str, int]) -> Iterator[str]:
    """The sizes below 1."""
    return (
        later("{name} is {size}, and must be at least 1", name=name, size=size)
        for name, size in sizes.items()
        if size < 1
    )
