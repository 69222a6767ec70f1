"""Cells that differ in the cluster's size only make a line: one for each model, chip mix and whatever else varies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cpsolver.doors.batch.cases import SweepCase
from cpsolver.doors.batch.fields import overlap
from cpsolver.doors.batch.rows import Row, per_dollar
from cpsolver.inputs.language import later, say

_SIZE, _CHIPS = ("cluster", "num_gpus"), ("cluster", "chips")
_MORE = {
    "gpus_per_node": later("node {value}"),
    "global_batch_size": later("batch {value}"),
    "sequence_length": later("seq. {value}"),
    "stack": later("stack {value}"),
}
Done = tuple[SweepCase, Row]


@dataclass(frozen=True)
class Measure:
    """A figure that grows better with its value; its name and its unit are said where they are shown."""

    name: str
    unit: str
    value: Callable[[Row], float | None]
    digits: int = 0
    scale: float = 1.0

    def text(self, row: Row) -> str:
        """The figure with its unit's digits; a dash where there is none."""
        value = self.value(row)
        return "–" if value is None else f"{value * self.scale:,.{self.digits}f}"


MEASURES = (
    Measure(later("throughput"), "tokens/s", lambda row: row["tokens_per_s"]),
    Measure("MFU", "%", lambda row: row["mfu"], 1, 100.0),
    Measure(later("tokens/s per dollar/hour"), later("tokens/s per $/h"), per_dollar),
)


@dataclass(frozen=True)
class Line:
    """A name and its cells in order of the cluster's size."""

    name: str
    done: tuple[Done, ...]

    @property
    def planned(self) -> tuple[Row, ...]:
        """The rows that have a plan."""
        return tuple(row for _, row in self.done if row["step_time_s"] is not None)

    def count(self, status: str) -> int:
        """How many cells ended so."""
        return sum(row["status"] == status for _, row in self.done)

    def best(self, measure: Measure) -> Row | None:
        """The row with the highest figure, of the smallest cluster where several have it."""
        known = [row for row in self.planned if measure.value(row) is not None]
        return max(known, key=lambda row: measure.value(row) or 0.0, default=None)


def lines_of(done: Sequence[Done]) -> list[Line]:
    """The sweep's lines in the order of their first cells; cells that could not be read belong to one by their text."""
    varied = [name for name in _MORE if len({row[name] for _, row in done} - {None}) > 1]
    found: dict[str, list[Done]] = {}
    for case, row in done:
        found.setdefault(_name(case, row, varied), []).append((case, row))
    return [
        Line(name, tuple(sorted(cells, key=lambda cell: int(cell[1]["num_gpus"] or 0))))
        for name, cells in found.items()
    ]


def _name(case: SweepCase, row: Row, varied: Sequence[str]) -> str:
    """The columns that tell lines apart; a cell that could not be read has few."""
    figures = [say(_MORE[name], value=row[name]) for name in varied if row[name] is not None]
    return ", ".join([row["model"] or "?", mix_of(case, row), *figures, *_other_labels(case)])


def mix_of(case: SweepCase, row: Row) -> str:
    """The chip mix in words: the label of the axis that sets it and not the size too, or shares of the cluster."""
    chips = [setting for setting in case.cell.settings if overlap(setting.path, _CHIPS)]
    if chips and len(chips[0].origin) > 1 and chips[0].origin[0] == "grid":
        axis = chips[0].origin[:2]
        if not any(setting.origin[:2] == axis for setting in case.cell.settings if setting.path == _SIZE):
            return case.cell.labels[str(axis[1])]
    if case.problem is None:
        return row["chips"] or "?"
    total, supplies = case.problem.num_gpus, case.problem.supplies
    return " + ".join(s.name if s.limit >= total else f"{s.name} {s.limit / total:.0%}" for s in supplies)


def _other_labels(case: SweepCase) -> list[str]:
    """Labels of axes that set neither model, chips, size nor one of the columns that are named anyway."""
    named = [_SIZE, _CHIPS, ("model",), ("stack",), ("cluster", "gpus_per_node"), ("cluster", "prices")]
    named += [("training", "global_batch_size"), ("training", "sequence_length")]
    labels: Mapping[str, str] = case.cell.labels
    told: dict[str, None] = {}
    for setting in case.cell.settings:
        axis = str(setting.origin[1])
        if setting.origin[0] == "grid" and not any(overlap(setting.path, path) for path in named):
            told[f"{axis.split('.')[-1]} {labels[axis]}"] = None
    return list(told)
