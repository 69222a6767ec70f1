"""What a fact of a framework is, and what all facts together say of rows of the search and of one plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cpsolver.inputs.language import say
from cpsolver.plans.dimensions import DIMENSIONS
from cpsolver.plans.strategy import V_SHAPED, Sharded, Strategy
from models_zoo import Architecture

Bools = NDArray[np.bool_]
Part = Literal["layout", "variant", "frame", "mixture", "plan"]
Judge = Callable[[Any, Architecture, Any], Iterator[tuple[Any, Callable[[], str]]]]
"""(facts, model, rows or one plan) -> where it is allowed, and what to say where it is not; some facts have several."""

SHARDED: tuple[Sharded, ...] = get_args(Sharded)
"""Columns count 1, 2, 3 for these."""

_IN_SHORT = (
    *("tp", "pp", "mbs", "flash_attention", "vpp", "sequence_parallel", "cp", "ulysses", "cp_gather", "ep", "etp"),
    *("expert_overlap", "sharded", "distributed_optimizer", "sharding_group", "stages", "layers"),
)
"""The order in which explanations say facts, by what they are about; others come last."""


@dataclass(frozen=True)
class Fact:
    """One thing that a framework can run or not.

    `parts`: what of a plan has to be decided for the search to ask it; "mixture": it is for plans on several chip types
    alone; "plan": it looks at layers and recomputation by stage, which rows of the search do not have. `about`: the
    decisions that it is about; `briefly`: what explanations say of a framework then, "" where that is nothing.
    """

    parts: tuple[Part, ...]
    judge: Judge
    about: tuple[str, ...]
    briefly: Callable[[Any], str]


FACTS: list[Fact] = []
"""Every fact that refuses plans, in the order in which the rules say them."""


def fact(*parts: Part, about: str = "", briefly: str | Callable[[Any], str] = "") -> Callable[[Judge], Judge]:
    """Register a function as a fact. `briefly`, if a text: of frameworks where the field of its name is false."""

    def register(judge: Judge) -> Judge:
        name = judge.__name__.removeprefix("_")
        text = "" if callable(briefly) else briefly
        words = briefly if callable(briefly) else lambda facts: say(text) if text and not getattr(facts, name) else ""
        FACTS.append(Fact(parts, judge, tuple(about.split()), words))
        return judge

    return register


def allowed_rows(facts: Any, model: Architecture, rows: Any, part: Part) -> Bools:
    """The rows (cost.shard.Candidates) that all facts of a part allow; what these do not look at may be undecided.

    Of the part "mixture": the rows whose plans may have several chip types.
    """
    mask = np.ones(len(rows.tp), dtype=np.bool_)
    for fact in FACTS:
        if part in fact.parts:
            for allowed, _ in fact.judge(facts, model, rows):
                mask &= allowed
    return mask


def refusals(facts: Any, model: Architecture, plan: Strategy, global_batch_size: int) -> Iterator[str]:
    """What of a plan the framework cannot run, in words that follow its name."""
    row, mixed = PlanRow(plan, global_batch_size), len(set(plan.stage_chips)) > 1
    for fact in FACTS:
        if mixed or "mixture" not in fact.parts:
            yield from (message() for allowed, message in fact.judge(facts, model, row) if not allowed)


def in_short(facts: Any) -> dict[str, str]:
    """Decision -> what the framework cannot run, or all that it can, in a few words: the first fact about it."""
    texts: dict[str, str] = {}
    for fact in FACTS:
        text = fact.briefly(facts)
        for decision in fact.about if text else ():
            texts.setdefault(decision, text)
    order = {decision: place for place, decision in enumerate(_IN_SHORT)}
    return dict(sorted(texts.items(), key=lambda item: order.get(item[0], len(order))))


class PlanRow:
    """One plan by the names of the columns of candidate rows, a number each; any other name is the plan's own."""

    def __init__(self, plan: Strategy, global_batch_size: int) -> None:
        vars(self).update(vars(plan))
        self.plan = plan
        self.microbatches = plan.microbatches(global_batch_size)
        self.embedding_slot, self.loss_slot = plan.slots
        self.types = ", ".join(dict.fromkeys(plan.stage_chips))
        self.sharded = 1 + SHARDED.index(plan.sharded)
        self.schedule = DIMENSIONS["schedule"].code(plan.schedule)

    def __getattr__(self, name: str) -> Any:
        if name == "plan":  # asked for by pickle, of a copy without anything yet
            raise AttributeError(name)
        return getattr(self.plan, name)


# For columns and for single numbers alike: `~` and np.where are right for columns alone.


def negated(flags: Any) -> Any:
    """True where they are false."""
    return flags ^ True


def either(condition: Any, one: Any, other: Any) -> Any:
    """The number of `one` where the condition is true, otherwise that of `other`."""
    return condition * one + negated(condition) * other


def among(values: Any, choices: tuple[Any, ...]) -> Any:
    """Where a value is one of some."""
    found: Any = False
    for choice in choices:
        found = found | (values == choice)
    return found


_V_SHAPED = tuple(DIMENSIONS["schedule"].code(name) for name in V_SHAPED)


def v_shaped(x: Any) -> Any:
    """Where stages are placed as a V."""
    return among(x.schedule, _V_SHAPED)
