"""From rows to mixes and from mixes to plans, many at once: numbers of stages by chip type, then orders of the types.

Nodes of one block with the same number of stages are bounded together: bounds of many cost little more than one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import factorial

import numpy as np

from cpsolver.cost.shard import Floats, Ints
from cpsolver.problem.problem import Problem
from cpsolver.search.arrangements import arrangements, next_counts
from cpsolver.search.bounds.bottleneck import ByEvents, has_many_orders, several_kinds
from cpsolver.search.bounds.bounds import plan_bound
from cpsolver.search.bounds.coefficients import Coefficients
from cpsolver.search.bounds.mixes import beginnings, mix_bound, placed_bound
from cpsolver.search.bounds.quick import quick_bound
from cpsolver.search.filters import may_mix
from cpsolver.search.frontier import Limits, Node

_MIXES = 64
"""Rows and mixes that are opened in one go while there is no limit, at most."""
_ORDERS = 1024
"""They are opened in no more orders of chip types than that: plans may give a limit."""
_AT_ONCE = 4096
"""Mixes or plans that are bounded in one go, so that what they need stays below some ten megabytes."""


@dataclass(frozen=True)
class Child:
    """What a node opens into, with bounds on its score and on its step time; `chips` where the order is known."""

    node: Node
    bound: float
    seconds: float
    mix: tuple[int, ...]
    chips: tuple[int, ...] = ()


@dataclass
class Opened:
    """What nodes open into where it may beat their limits; `orders`: how many orders of chip types were bounded."""

    children: list[Child] = field(default_factory=list)
    orders: int = 0


@dataclass(frozen=True)
class _Way:
    """Least and most stages of each chip type below a node. Nothing was decided if it is the `only` one."""

    node: Node
    least: tuple[int, ...]
    most: tuple[int, ...]
    only: bool

    @property
    def whole(self) -> bool:
        return self.least == self.most


def mixes_at_once(problem: Problem) -> int:
    """Rows and mixes that are opened in one go while there is no limit."""
    return max(1, min(_MIXES, _ORDERS // factorial(len(problem.supplies))))


def opened(nodes: Iterable[Node], limits: Limits) -> Opened:
    """Settle how many stages the next chip type serves, and where all numbers are known the order of the types."""
    found, choices = Opened(), _Ways()
    for alike in _alike(nodes):
        ways = choices.of(alike)
        placed = _are_placed(alike[0].branch.problem, limits)
        last = [way.whole and way.only and (way.node.whole or not placed) for way in ways]
        decided = iter([way for way, orders in zip(ways, last, strict=True) if not orders])
        while some := list(islice(decided, _AT_ONCE)):
            found.children += _bounded(some, limits)
        whole = [way for way, orders in zip(ways, last, strict=True) if orders]
        plans = _in_order(whole, [choices.orders(way) for way in whole], limits)
        while pairs := list(islice(plans, _AT_ONCE)):
            found.orders += len(pairs)
            found.children += _plans(pairs, limits)
    return found


def rebounded(plans: Iterable[Node], limits: Limits) -> Iterator[Child]:
    """Those of some plans that may still beat their limits, which were higher when they were bounded."""
    for alike in _alike(plans):
        pairs = iter([(_Way(node, node.mix, node.mix, True), np.array(node.chips)) for node in alike])
        while some := list(islice(pairs, _AT_ONCE)):
            yield from _plans(some, limits)


def _alike(nodes: Iterable[Node]) -> Iterable[list[Node]]:
    """The nodes by block and number of stages."""
    groups: dict[tuple[int, int], list[Node]] = {}
    for node in nodes:
        groups.setdefault((id(node.block), int(node.block.table.rows.pp[node.row])), []).append(node)
    return groups.values()


class _Ways:
    """What there is to choose from; many nodes share it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[object, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]] = {}
        self._orders: dict[tuple[object, ...], Ints] = {}

    def of(self, nodes: list[Node]) -> list[_Way]:
        """The ways to go on with some mixes, alike all of them: what leaves no choice is gone on with at once."""
        rows = nodes[0].block.table.rows
        mixed = may_mix(nodes[0].branch.problem, rows.take(np.array([node.row for node in nodes])))
        return [way for node, may in zip(nodes, mixed.tolist(), strict=True) for way in self._of(node, may)]

    def _of(self, node: Node, mixed: bool) -> list[_Way]:
        if node.whole:
            return [_Way(node, node.mix, node.mix, True)]
        rows, problem = node.block.table.rows, node.branch.problem
        pp, width = int(rows.pp[node.row]), int(rows.stage_devices[node.row])
        key = (id(problem), width, pp, node.mix, mixed)
        if key not in self._counts:
            prefix, ways = node.mix, self._next(node, width, pp, node.mix, mixed)
            while len(ways) == 1 and ways[0][0] != ways[0][1]:
                prefix = ways[0][0][: len(prefix) + 1]
                ways = self._next(node, width, pp, prefix, mixed)
            self._counts[key] = ways
        ways = self._counts[key]
        return [_Way(node, least, most, len(ways) == 1) for least, most in ways]

    def _next(
        self, node: Node, width: int, pp: int, prefix: tuple[int, ...], mixed: bool
    ) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        tables = next_counts(node.branch.problem, width, pp, prefix, mixed)
        least, most = ([tuple(counts) for counts in table.tolist()] for table in tables)
        return list(zip(least, most, strict=True))

    def orders(self, way: _Way) -> Ints:
        """Every order of the chip types of a whole mix: chips by position."""
        problem = way.node.branch.problem
        key = (id(problem), way.least)
        if key not in self._orders:
            self._orders[key] = arrangements(problem, np.array(way.least, dtype=np.int64))
        return self._orders[key]


def _bounded(ways: list[_Way], limits: Limits) -> Iterator[Child]:
    """Mixes that may beat their limits, of which more is known than of their nodes."""
    table, branch = ways[0].node.block.table, ways[0].node.branch
    row = np.array([way.node.row for way in ways])
    least, most = (np.array([getattr(way, name) for way in ways], dtype=np.int64) for name in ("least", "most"))
    rates = branch.objective.rates(table.rows.stage_devices[row], table.rows.pp[row], least, most)
    seconds = np.maximum(quick_bound(table.take(row), most=most), [way.node.seconds for way in ways])
    limit, known = limits.of_rows(table.rows, row), np.array([way.node.bound for way in ways])
    bounds = np.maximum(branch.objective.bounds(seconds, rates), known)
    may, placed = bounds < limit, _are_placed(branch.problem, limits)
    if limits.known and several_kinds(branch.problem):  # more is known of them in their places than of their mean
        may &= placed & (least == most).all(axis=1)
    left = np.nonzero(may)[0]
    if len(left):
        of_use, own = limits.wanted(branch.objective, table.rows, row[left], rates[left]), (row[left], least[left])
        late = branch.objective.latest_limits_s(limit[left], rates[left])
        found = placed_bound(table, *own, late, of_use) if placed else mix_bound(table, *own, most[left], of_use)
        seconds[left] = np.maximum(seconds[left], found)
        bounds = np.maximum(branch.objective.bounds(seconds, rates), known)
    for index in np.nonzero(bounds < limit)[0].tolist():
        way = ways[index]
        mix = way.least if way.whole else _known(way)
        yield Child(way.node, float(bounds[index]), float(seconds[index]), mix)


def _are_placed(problem: Problem, limits: Limits) -> bool:
    """Whether mixes get a bound in their places: of layers of several kinds, where there is a limit."""
    return limits.known and several_kinds(problem) and has_many_orders(problem)


def _known(way: _Way) -> tuple[int, ...]:
    """The stages of the first chip types, as far as all are settled."""
    known = next(at for at, (least, most) in enumerate(zip(way.least, way.most, strict=True)) if least != most)
    return way.least[: max(known, len(way.node.mix) + 1)]


@dataclass(frozen=True)
class _Beaten:
    """What plans of whole mixes have to beat, of one block and number of stages, (n,) each: scores and step times; and
    which of these are of use at all."""

    table: Coefficients
    row: Ints
    mix: Ints
    rates: Floats
    scores: Floats
    seconds: Floats
    wanted: ByEvents | None

    @classmethod
    def of(cls, ways: list[_Way], limits: Limits) -> _Beaten:
        """By the limits that rows have."""
        table, objective = ways[0].node.block.table, ways[0].node.branch.objective
        row, mix = np.array([way.node.row for way in ways]), np.array([way.least for way in ways], dtype=np.int64)
        rates = objective.rates(table.rows.stage_devices[row], table.rows.pp[row], mix, mix)
        scores, wanted = limits.of_rows(table.rows, row), limits.wanted(objective, table.rows, row, rates)
        return cls(table, row, mix, rates, scores, objective.latest_limits_s(scores, rates), wanted)


def _in_order(ways: list[_Way], orders: list[Ints], limits: Limits) -> Iterator[tuple[_Way, Ints]]:
    """Whole mixes with each order of the types that may beat its limit, as far as that is seen at a glance."""
    problem = ways[0].node.branch.problem if ways else None
    if problem is not None and problem.mixed and several_kinds(problem):
        asked = _Beaten.of(ways, limits)
        may = beginnings(asked.table, asked.row, asked.mix, asked.seconds, asked.wanted)
        first = [np.bitwise_or.accumulate(1 << each, axis=1) for each in orders]
        orders = [each[own[types].all(axis=1)] for each, own, types in zip(orders, may, first, strict=True)]
    yield from ((way, order) for way, of_way in zip(ways, orders, strict=True) for order in of_way)


def _plans(pairs: list[tuple[_Way, Ints]], limits: Limits) -> Iterator[Child]:
    """Plans of whole mixes with an order of the types that may beat their limits."""
    nodes = [way.node for way, _ in pairs]
    asked = _Beaten.of([way for way, _ in pairs], limits)
    chips = np.array([order for _, order in pairs], dtype=np.int64)
    seconds = plan_bound(asked.table, asked.row, chips, asked.seconds, asked.wanted)
    seconds = np.maximum(seconds, [node.seconds for node in nodes])
    scores = nodes[0].branch.objective.bounds(seconds, asked.rates)
    bounds = np.maximum(scores, [node.bound for node in nodes])
    for index in np.nonzero(bounds < asked.scores)[0].tolist():
        way, order = pairs[index]
        yield Child(way.node, float(bounds[index]), float(seconds[index]), way.least, tuple(order.tolist()))
