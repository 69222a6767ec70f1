"""What waits to be opened or solved, best bound first: rows and mixes in one queue, plans in another.

While fewer than K plans are known, what nothing would tell from a known plan waits apart: it gives no limit, but only a
better plan in place of that one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from cpsolver.plans.dimensions import ROW
from cpsolver.plans.strategy import OWN_BEST
from cpsolver.search.frontier import INFINITE, Block, Branch, Node

_KEY = tuple(name for name in ROW if name not in OWN_BEST)
"""Columns of a row that make a plan another one, as `Strategy.key` has it."""

Key = tuple[object, ...]


def key_of(node: Node) -> Key:
    """What tells the plan of a node from others; plans with one key have the same `Strategy.key`."""
    rows = node.block.table.rows
    return *(getattr(rows, name)[node.row].item() for name in _KEY), node.chips


class Agenda:
    """The nodes that are not opened, by their bounds."""

    def __init__(self) -> None:
        self._mixes: list[Node] = []
        self._plans: list[Node] = []
        self._apart: list[Node] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._mixes) + len(self._plans) + len(self._apart)

    def __iter__(self) -> Iterator[Node]:
        yield from self._mixes
        yield from self._plans
        yield from self._apart

    def add(
        self,
        bound: float,
        seconds: float,
        branch: Branch,
        block: Block,
        row: int,
        mix: tuple[int, ...] = (),
        chips: tuple[int, ...] = (),
    ) -> None:
        """A row, a mix or, with `chips`, a plan."""
        self._count += 1
        self.put_back(Node(bound, self._count, seconds, branch, block, row, mix, chips))

    def put_back(self, node: Node) -> None:
        """A node that was taken out."""
        heapq.heappush(self._plans if node.chips else self._mixes, node)

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
        return min(self.mix, self.plan, min((node.bound for node in self._apart), default=INFINITE))

    def take_mixes(self, most: int, below: float) -> list[Node]:
        """The best rows and mixes, as far as they are below a limit."""
        taken: list[Node] = []
        while self._mixes and len(taken) < most and self._mixes[0].bound < below:
            taken.append(heapq.heappop(self._mixes))
        return taken

    def take_plan(self) -> Node:
        """The best plan."""
        return heapq.heappop(self._plans)

    def set_apart(self, node: Node) -> None:
        """Let a node wait until there is a limit, or nothing else."""
        self._apart.append(node)

    def bring_back(self) -> None:
        """Let no node wait apart any longer."""
        for node in self._apart:
            self.put_back(node)
        self._apart = []
