"""What waits to be opened or solved, best bound first: rows and mixes in one queue, plans in another.

While fewer than K plans are known, what nothing would tell from a known plan waits apart: it gives no limit, but only a
better plan in place of that one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cpsolver.plans.dimensions import DEGREES, ROW
from cpsolver.plans.strategy import OWN_BEST
from cpsolver.search.cells import merged_least
from cpsolver.search.frontier import INFINITE, Block, Branch, Node
from cpsolver.search.result import Cell, Tallies

_TRIES = 3
"""So often a family is looked into to lower a loose limit."""
KEY = tuple(name for name in ROW if name not in OWN_BEST)
"""Columns of a row that make a plan another one, as `Strategy.key` has it."""

Key = tuple[object, ...]


def key_of(node: Node) -> Key:
    """What tells the plan of a node from others; plans with one key have the same `Strategy.key`."""
    rows = node.block.table.rows
    return *(getattr(rows, name)[node.row].item() for name in KEY), node.chips


def name_of(node: Node) -> str:
    """The degrees of a node's row in words."""
    rows = node.block.table.rows
    return " ".join(f"{name} {int(rows.unfolded(name)[node.row])}" for name in DEGREES if name != "etp")


class Agenda:
    """The nodes that are not opened, by their bounds."""

    def __init__(self) -> None:
        self._mixes: list[Node] = []
        self._plans: list[Node] = []
        self._apart: list[Node] = []
        self._lowest_apart = INFINITE
        self._count = 0
        self._taken = Counter[tuple[int, ...]]()  # how often `take_others` took a node of a family

    def __len__(self) -> int:
        return len(self._mixes) + len(self._plans) + len(self._apart)

    def __iter__(self) -> Iterator[Node]:
        yield from self._mixes
        yield from self._plans
        yield from self._apart

    def node(
        self,
        bound: float,
        seconds: float,
        branch: Branch,
        block: Block,
        row: int,
        mix: tuple[int, ...] = (),
        chips: tuple[int, ...] = (),
    ) -> Node:
        """A row, a mix or, with `chips`, a plan, to be added."""
        self._count += 1
        return Node(bound, self._count, seconds, branch, block, row, mix, chips)

    def add(self, node: Node) -> None:
        """Let a node wait, one that was taken out too."""
        heapq.heappush(self._plans if node.chips else self._mixes, node)

    def add_all(self, nodes: Iterable[Node]) -> None:
        """Let several wait."""
        for node in nodes:
            self.add(node)

    @property
    def mix(self) -> float:
        """The smallest bound of a row or a mix, those apart left out, as of a plan."""
        return self._mixes[0].bound if self._mixes else INFINITE

    @property
    def plan(self) -> float:
        """The smallest bound of a plan."""
        return self._plans[0].bound if self._plans else INFINITE

    @property
    def lowest(self) -> float:
        """The smallest bound of all."""
        return min(self.mix, self.plan, self._lowest_apart)

    def take_mixes(self, most: int, below: float) -> list[Node]:
        """The best rows and mixes, as far as they are below a limit."""
        taken: list[Node] = []
        while self._mixes and len(taken) < most and self._mixes[0].bound < below:
            taken.append(heapq.heappop(self._mixes))
        return taken

    def take_plan(self) -> Node:
        """The best plan."""
        return heapq.heappop(self._plans)

    def take_others(self, known: Container[tuple[object, ...]], below: float, families: int) -> list[Node]:
        """The best node of each of so many layout families that are not known, as far as it is below a limit; of a
        family `_TRIES` times at most."""
        best: dict[tuple[int, ...], Node] = {}
        for node in (*self._mixes, *self._plans):
            family = node.block.families[node.row]
            if node.bound >= below or family in known or self._taken[family] >= _TRIES:
                continue
            if family not in best or node < best[family]:
                best[family] = node
        taken = heapq.nsmallest(families, best.values())
        self._taken.update(node.block.families[node.row] for node in taken)
        self._mixes, self._plans = _without(self._mixes, taken), _without(self._plans, taken)
        return taken

    def take_plans(self, wanted: Callable[[Node], bool]) -> list[Node]:
        """All plans that are wanted."""
        taken = [node for node in self._plans if wanted(node)]
        self._plans = _without(self._plans, taken)
        return taken

    def set_apart(self, node: Node) -> None:
        """Let a node wait until there is a limit, or nothing else."""
        self._apart.append(node)
        self._lowest_apart = min(self._lowest_apart, node.bound)

    def bring_back(self) -> None:
        """Let no node wait apart any longer."""
        self.add_all(self._apart)
        self._apart, self._lowest_apart = [], INFINITE


def _without(waiting: list[Node], taken: list[Node]) -> list[Node]:
    """A queue without some of its nodes."""
    orders = {node.order for node in taken}
    left = [node for node in waiting if node.order not in orders]
    heapq.heapify(left)
    return left


@dataclass(frozen=True)
class RowCounts:
    """What became of the rows of some branches, as `Proof` has it."""

    considered: int
    combinations: int
    refused: dict[str, int]
    memory: int
    bounded: int
    solved: int
    open: int
    tallies: Tallies


def row_counts(branches: Sequence[Branch], waiting: Sequence[Node] | None, limit: float) -> RowCounts:
    """Of some branches; `waiting` and `limit` as `tallies_of` has them."""
    tallies, spaces, refused = tallies_of(branches, waiting, limit), [each.space for each in branches], Counter[str]()
    for space in spaces:
        refused.update(space.refused)
    solved, still_open = sum(tallies.solved.values()), sum(tallies.open.values())
    no_fit = sum(branch.no_fit for branch in branches)
    return RowCounts(
        considered=sum(space.considered for space in spaces),
        combinations=sum(space.combinations for space in spaces),
        refused=dict(refused),
        memory=no_fit,
        bounded=sum(map(len, spaces)) - no_fit - solved - still_open,
        solved=solved,
        open=still_open,
        tallies=tallies,
    )


def tallies_of(branches: Sequence[Branch], waiting: Sequence[Node] | None, limit: float) -> Tallies:
    """How the rows of some branches ended, by cell; `waiting`: what may still beat the limit, None: all is settled."""
    blocks = [block for branch in branches for block in branch.blocks]
    solved = Counter(_cell(block, row) for block in blocks for row in block.solved)
    left = {(id(node.block), node.row): node.block for node in waiting or () if node.row not in node.block.solved}
    still_open = Counter(_cell(block, row) for (_, row), block in left.items())
    for branch in branches if waiting is not None else ():
        still_open += branch.unopened_cells(limit)
    unfit = sum((branch.tally.unfit for branch in branches), Counter[Cell]())
    least = merged_least([branch.tally.least for branch in branches])
    return Tallies(unfit, solved, still_open, least, tuple(branch.problem.num_gpus for branch in branches))


def _cell(block: Block, row: int) -> Cell:
    rows = block.table.rows
    return int(rows.tp[row]), int(rows.unfolded("pp")[row])
