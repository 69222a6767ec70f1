"""What the user pinned or forbade, one entry at a time, as it stands in the spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpsolver.inputs.errors import shown
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.spec.search import ALL_CHIPS, Decisions

_SHOWN = 8  # most items of a list


@dataclass(frozen=True, eq=False)
class Wish:
    """One entry of `search.pin` or `search.forbid`: the part, the decision, its values."""

    part: str
    name: str
    values: Any

    @property
    def path(self) -> tuple[str, ...]:
        """Where it stands in a spec."""
        return ("search", self.part, self.name)

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} = {_value(self.values)}"


def wishes(problem: Problem) -> tuple[Wish, ...]:
    """Every entry of a problem's pins and bans."""
    search = problem.spec.search
    found = (
        Wish(part, name, getattr(decisions, name))
        for part, decisions in (("pin", search.pin), ("forbid", search.forbid))
        for name in Decisions.model_fields
    )
    return tuple(wish for wish in found if wish.values is not None)


def only_wish(problem: Problem, wish: Wish) -> Problem:
    """The problem with that entry alone."""
    part = {name: Decisions() for name in ("pin", "forbid")} | {wish.part: Decisions(**{wish.name: wish.values})}
    return problem.with_(search=part)


def taken(plan: Strategy, name: str) -> str:
    """What a plan takes for a decision."""
    if name == "stages":
        return ", ".join(f"{group.chip} {group.num_stages}" for group in plan.groups)
    if name == "chip_order":
        return _value(tuple(group.chip for group in plan.groups))
    value = plan.recompute_layers if name == "recompute_num_layers" else getattr(plan, name)
    return _value(tuple(dict.fromkeys(value)) if name.startswith("recompute") else value)


def _value(values: Any) -> str:
    if isinstance(values, dict):
        if set(values) == {ALL_CHIPS}:
            return _value(values[ALL_CHIPS])
        return "{" + ", ".join(f"{chip}: {_value(some)}" for chip, some in values.items()) + "}"
    items = values if isinstance(values, tuple) else (values,)
    said = [
        _value(item) if isinstance(item, tuple) else item if isinstance(item, str) else shown(item) for item in items
    ]
    if len(said) == 1:
        return said[0]
    return "[" + ", ".join([*said[:_SHOWN], *(["…"] if len(said) > _SHOWN else [])]) + "]"
