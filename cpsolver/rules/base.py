"""What a rule is, and how it writes numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem


@dataclass(frozen=True)
class Violation:
    """One broken rule, with the numbers that break it."""

    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


Rule = Callable[[Problem, Strategy], Iterator[str]]
"""A rule yields a message for everything in a plan that breaks it."""


def listed(values: object) -> str:
    """A tuple as people write it; anything else as it is."""
    return ", ".join(str(value) for value in values) if isinstance(values, tuple) else str(values)


def product(sizes: dict[str, int]) -> str:
    """Sizes with their names and their product: tp 2 x pp 4 = 8."""
    total = 1
    for size in sizes.values():
        total *= size
    return f"{' x '.join(f'{name} {size}' for name, size in sizes.items())} = {total}"


def too_small(sizes: dict[str, int]) -> Iterator[str]:
    """The sizes below 1."""
    return (f"{name} is {size}, and must be at least 1" for name, size in sizes.items() if size < 1)
