"""The plans side by side: a row a property, a column a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from cpsolver.doors.report.breakdown import parts_used
from cpsolver.doors.report.columns import Row, ShownPlan, plan_rows
from cpsolver.doors.report.degrees import layer_traffic
from cpsolver.doors.report.text import recompute_text
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import count, percent, runs
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from hw_specs.units import bytes_to_gib

_LABEL, _COLUMN, _MOST = 19, 11, 18


_SHORT_PARTS = {
    "compute": later("compute"),
    "tensor_parallel": later("tensor parallel"),
    "recompute": later("recompute"),
    "sharding": later("sharding"),
    "pipeline_p2p": later("pipeline p2p"),
    "bubble": later("pipeline bubble"),
    "data_parallel": later("data parallel"),
    "optimizer": later("optimizer step"),
}
"""The parts of a step, in the width of a label."""
_SHOWN = 0.0005  # a part of every plan's step smaller than this share would show as 0.0 %


class PlanTable:
    """As many plans side by side as the width holds, then the next ones below."""

    def __init__(self, problem: Problem, columns: Sequence[ShownPlan]) -> None:
        self._problem, self._columns = problem, columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fits = max(1, (options.max_width - _LABEL) // (_COLUMN + 1))
        width = min(_MOST, (options.max_width - _LABEL) // min(fits, len(self._columns)) - 1)
        for start in range(0, len(self._columns), fits):
            if start:
                yield ""
            yield self._table(self._columns[start : start + fits], width)

    def _table(self, columns: Sequence[ShownPlan], width: int) -> Table:
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=_LABEL - 1, style="dim")
        for _ in columns:
            table.add_column(width=width, justify="right", overflow="fold")
        if len(self._columns) > 1:
            table.add_row("", *(column.title for column in columns), style="bold")
        for label, cell in plan_rows(self._problem, self._columns):
            style = "bold" if label == say("step time") else None
            table.add_row(label, *(Text(cell(column)) for column in columns), style=style)
        for chip in self._chips(columns):
            self._add_chip(table, columns, chip)
        if len(self._columns) > 1:
            table.add_row(Text(say("time, in parts"), style="bold"))
            for label, cell in self._parts():
                table.add_row(label, *(Text(cell(column)) for column in columns))
        return table

    def _chips(self, columns: Sequence[ShownPlan]) -> list[str]:
        used = {chip for column in columns for chip in column.strategy.stage_chips}
        return [name for name in self._problem.chip_names if name in used]

    def _add_chip(self, table: Table, columns: Sequence[ShownPlan], chip: str) -> None:
        room = bytes_to_gib(self._problem.capacity_bytes(self._problem.supply(chip).chip))
        table.add_row(Text(chip, style="bold"))
        rows: list[Row] = [
            (say("  stages"), lambda c: str(c.strategy.stage_chips.count(chip))),
            (say("  GPUs"), lambda c: count(c.strategy.devices_on(chip))),
            (say("  layers a stage"), lambda c: runs(_layers(c.strategy, chip))),
            (say("  recompute"), lambda c: recompute_text(c.strategy, chip)),
            (say("  memory, fullest"), lambda c: f"{bytes_to_gib(c.evaluation.memory_bytes_by_chip[chip]):.1f} GiB"),
        ]
        for label, cell in rows:
            cells = [cell(c) if chip in c.strategy.stage_chips else "–" for c in columns]
            table.add_row(label, *cells)
        table.add_row(say("  memory usable"), *(f"{room:.1f} GiB" for _ in columns))

    def _traffic(self) -> str:
        told = layer_traffic([column.strategy for column in self._columns])
        return told.replace("-", " ") if "-" in told else say("{ranks} comm.", ranks=told.replace(say(" and "), ", "))

    def _parts(self) -> list[Row]:
        """Where the time of each plan goes, for telling why one is faster than another; not what takes none."""

        def cell(part: str) -> Callable[[ShownPlan], str]:
            return lambda c: percent(c.evaluation.breakdown_s[part] / c.evaluation.step_time_s)

        names = {**{part: say(name) for part, name in _SHORT_PARTS.items()}, "tensor_parallel": self._traffic()}
        used = {part for column in self._columns for part in parts_used(column.evaluation, _SHOWN)}
        return [(f"  {name}", cell(part)) for part, name in names.items() if part in used]


def _layers(strategy: Strategy, chip: str) -> list[int]:
    return [n for name, n in zip(strategy.stage_chips, strategy.layers, strict=True) if name == chip]
