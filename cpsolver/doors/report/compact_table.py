"""The plans of an answer in a line each: the decisions that are not the same in all, times, chances, and a note."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.cells import cell_len
from rich.text import Text

from cpsolver.doors.report.blocks import Block
from cpsolver.doors.report.columns import ShownPlan
from cpsolver.doors.report.degrees import on_or_off, size_words
from cpsolver.doors.report.goals import chance, goal_rows, worse_than_best, worse_word
from cpsolver.doors.report.plan_words import twin_words
from cpsolver.doors.report.text import recompute_text
from cpsolver.evidence.nearest import unmeasured
from cpsolver.inputs.language import say
from cpsolver.inputs.text import about, runs, unit
from cpsolver.plans.dimensions import DEGREES, DIMENSIONS, FLAGS
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem

_WIDE, _WIDE_GOES = 14, 3
"""A wider decision than that goes so much earlier."""
GOOD, DOUBTFUL, WRONG = "green", "yellow", "red"
"""What colours mean: as it should be; tight or uncertain; not legal, or not to be had."""
_GAP, _SIZE_GAP = 2, 1
"""Columns before a column, and before one of sizes."""


@dataclass(frozen=True)
class _Column:
    """A head and a cell for each plan. `goes`: where the width does not hold all, the highest goes first; 0: stays."""

    head: str
    cells: tuple[str, ...]
    goes: int = 0
    left: bool = False
    styles: tuple[str, ...] = ()
    gap: int = _GAP

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.head, *self.cells)))

    def padded(self, text: str) -> str:
        """The text in the column's width."""
        blank = " " * (self.width - cell_len(text))
        return text + blank if self.left else blank + text

    def cell(self, place: int) -> Text:
        """That of a plan."""
        return Text(self.padded(self.cells[place]), style=self.styles[place] if self.styles else "")


@dataclass(frozen=True)
class PlansBlock(Block):
    """The head and a line a plan; `order`: places of all plans in `rows`, what is to stay longest first."""

    rows: tuple[Text, ...] = ()
    order: tuple[int, ...] = ()

    def shortened(self, _width: int) -> Block:
        """A line less. What is left out is counted on the last line, which takes the place of a plan, too."""
        visible = len(self.lines) - 3
        more = Text(say("   … {rows} more: --full", rows=len(self.rows) - visible), style="dim")
        return replace(self, lines=(self.lines[0], *(self.rows[place] for place in sorted(self.order[:visible])), more))


def plans_block(problem: Problem, plans: Sequence[ShownPlan], chosen: int, width: int, risk: float) -> PlansBlock:
    """The table in that width. `chosen`: the place of the plan to run; from a chance of `risk` on of running out of
    memory a plan's is doubtful.
    """
    columns = list(_columns(problem, plans, chosen, risk))
    roles = max(cell_len(", ".join(_roles(plan, place == chosen))) for place, plan in enumerate(plans))
    while _width(columns) + _GAP + roles > width and any(column.goes for column in columns):
        columns.remove(max(columns, key=lambda column: column.goes))
    room = width - _width(columns) - _GAP
    notes = list(_notes(problem, plans, chosen, room))
    heads = [" " * column.gap + column.padded(column.head) for column in columns]
    head = Text("".join(heads) + (" " * _GAP + say("note")) * any(notes), style="dim")
    rows = []
    for place, note in enumerate(notes):
        cells = [part for column in columns for part in (" " * column.gap, column.cell(place))]
        row = Text.assemble(*cells, f"{' ' * _GAP}{note}" if note else "", style="bold" if place == chosen else "")
        rows.append(row)
    order = sorted(range(len(plans)), key=lambda place: (place != chosen, not plans[place].roles, place))
    block = PlansBlock("", (head, *rows), yields=4, least=min(len(rows), 3) + 1, apart=True, indent=0)
    return replace(block, rows=tuple(rows), order=tuple(order))


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.gap + column.width for column in columns)


def _columns(problem: Problem, plans: Sequence[ShownPlan], chosen: int, risk: float) -> Iterator[_Column]:
    """All that there may be, in the order in which they stand."""
    best_s = plans[0].evaluation.step_time_s
    strategies = [plan.strategy for plan in plans]

    def each(cell: Callable[[ShownPlan], str]) -> tuple[str, ...]:
        return tuple(cell(plan) for plan in plans)

    yield _Column("#", tuple(f"{'▸' if place == chosen else ''}{place + 1}" for place in range(len(plans))), gap=0)
    yield from _decisions(strategies)
    yield _Column(say("step"), each(lambda p: f"{about(p.evaluation.step_time_s, best_s)} {unit(best_s)}"))
    for label, cell in goal_rows(problem):
        if not label.startswith(" "):
            cells = tuple(cell(plan.strategy, plan.evaluation) for plan in plans)
            yield _Column(label.replace(say(" in use"), "").replace(" per ", "/"), cells)
    if len(plans) > 1:
        _, behind = worse_than_best(problem, plans[0].strategy, best_s)
        yield _Column(worse_word(problem), each(lambda p: behind(p.strategy, p.evaluation).replace(say("best"), "")))
    colours = each(lambda p: GOOD if p.out_of_memory < risk else DOUBTFUL)
    yield _Column(say("P(OOM)"), each(lambda p: chance(p.out_of_memory)), styles=colours)
    if len(plans) > 1 and problem.spec.search.objective != "fewest_chips":  # there the fastest is not the best
        yield _Column(say("P(best)"), each(lambda p: chance(p.fastest)), goes=6)


def _decisions(plans: Sequence[Strategy]) -> Iterator[_Column]:
    """Those that are not the same in all plans: sizes, sharding, recomputation, chips by stage, flags."""

    def differing(head: str, of: Callable[[Strategy], str], goes: int, size: bool = False) -> Iterator[_Column]:
        cells = tuple(of(plan) for plan in plans)
        if len(set(cells)) > 1:
            goes += _WIDE_GOES * (max(map(cell_len, cells)) > _WIDE)
            yield _Column(head, cells, goes, left=not size, gap=_SIZE_GAP if size else _GAP)

    for number, name in enumerate(DEGREES):
        yield from differing(name, lambda p, name=name: size_words(p, name), number and 2, size=True)  # type: ignore[misc]
    yield from differing("ZeRO", lambda p: str(p.zero_stage or "-"), 3, size=True)
    yield from differing(say("recompute"), _recompute, 5)
    if len({chip for plan in plans for chip in plan.stage_chips}) > 1:
        yield from differing(say("stages by chip"), lambda p: runs(p.stage_chips), 9)
    for flag in (DIMENSIONS[name] for name in FLAGS if DIMENSIONS[name].label and DIMENSIONS[name].group == "flags"):
        usual = [getattr(plan, flag.name) == (plan.tp > 1 if flag.default is None else flag.default) for plan in plans]
        if not all(usual):  # what follows from the sizes is no difference of its own
            yield from differing(say(flag.label), partial(on_or_off, flag), 10)


def _recompute(plan: Strategy) -> str:
    """In short: of several modules the first and how many more; by chip type where these differ."""
    texts = {chip: _shortly(recompute_text(plan, chip)) for chip in plan.stage_chips}
    same = len(set(texts.values())) == 1
    return next(iter(texts.values())) if same else ", ".join(f"{chip}: {text}" for chip, text in texts.items())


def _shortly(text: str) -> str:
    """`selective: layernorm, moe_act` as `layernorm+1`."""
    if not text.startswith("selective: ") or "×" in text:
        return text
    first, *others = text.removeprefix("selective: ").split(", ")
    return f"{first}+{len(others)}" if others else first


def _roles(plan: ShownPlan, chosen: bool) -> list[str]:
    """What its note says of them; those of the plan to run stand above."""
    return [] if chosen else [say(role) for role in plan.roles]


def _notes(problem: Problem, plans: Sequence[ShownPlan], chosen: int, room: int) -> Iterator[str]:
    """A plan's roles, then what no run has had of it, as far as that of the plan to run has been measured."""
    usual = unmeasured(problem, plans[chosen].strategy)
    for place, plan in enumerate(plans):
        beyond = [words for words in unmeasured(problem, plan.strategy) if words not in usual]
        twin = _twin(plans, place)
        roles = _roles(plan, place == chosen)
        fuller = [*roles, *twin, *([say("unmeasured: {beyond}", beyond="; ".join(beyond))] if beyond else [])]
        short = [*roles, *twin, *([say("unmeasured")] if beyond else [])]
        texts = [", ".join(words) for words in (fuller, short, roles or twin, roles)]
        yield next((text for text in texts if cell_len(text) <= room), "")


def _twin(plans: Sequence[ShownPlan], place: int) -> list[str]:
    """What sets a plan apart from one before it that has the same sizes, where that is not seen in them."""
    for number, other in enumerate(plans[:place], 1):
        if words := twin_words(other.strategy, plans[place].strategy):
            return [say("as {number}, other {words}", number=number, words=words)]
    return []
