"""Rows of plain values, plans and others: as a table of pandas, and as one of HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from cpsolver.doors.report.columns import KEPT, role_names
from cpsolver.explanation.closest import strategy_text
from cpsolver.inputs.errors import InputError, Trouble
from cpsolver.plans.dimensions import DEGREES
from cpsolver.plans.strategy import Strategy
from cpsolver.problem.problem import Problem
from cpsolver.search.result import Result

Record = dict[str, Any]
"""A row: plain values by the name of their column."""
_MOST_ROWS = 200


def data_frame(records: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """The rows as a pandas.DataFrame; `columns` are its columns where there may be no row.

    Raises InputError where pandas is not installed.
    """
    try:
        from pandas import DataFrame
    except ImportError:
        raise InputError(Trouble("to_frame", "needs pandas: pip install pandas")) from None
    return DataFrame.from_records(list(records), columns=columns)


def plan_columns() -> list[str]:
    """The columns of `plan_records`."""
    figures = [column.name for column in KEPT]
    return [
        *("rank", "roles", "proven", "gap", "added"),
        *(*DEGREES, "schedule", "sequence_parallel", "zero_stage", "microbatches"),
        *(*figures, "out_of_memory_probability", "probability_fastest", "strategy"),
    ]


def plan_records(problem: Problem, result: Result, document: Mapping[str, Any]) -> list[Record]:
    """A row for each plan of an answer, of which `document` is what `solve --json` prints."""
    roles = role_names(problem, result)
    return [
        {"roles": ", ".join(roles[place]), **plan_record(plan.strategy, document["plans"][place])}
        for place, plan in enumerate(result.plans)
    ]


def plan_record(strategy: Strategy, told: Mapping[str, Any]) -> Record:
    """A plan's decisions and key figures; `told` is what a document says of it."""
    found: Record = {name: told.get(name) for name in ("rank", "proven", "gap", "added")}
    found |= {name: getattr(strategy, name) for name in (*DEGREES, "schedule", "sequence_parallel")}
    found |= {"zero_stage": strategy.zero_stage, "microbatches": told["microbatches"]}
    found |= {column.name: column.value(told) for column in KEPT}
    found |= {name: told[name] for name in ("out_of_memory_probability", "probability_fastest")}
    return {**found, "strategy": strategy_text(strategy)}


def table_html(title: str, records: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> str:
    """The rows as a piece of HTML that changes nothing around it: every text is escaped, a long table is cut."""
    heads = list(records[0]) if records else []
    lines = [f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in heads)}</tr>"]
    for record in records[:_MOST_ROWS]:
        lines.append(f"<tr>{''.join(_cell(record.get(name)) for name in heads)}</tr>")
    left = len(records) - _MOST_ROWS
    told = [*notes, *([f"… and {left:,} more"] if left > 0 else [])]
    above = f"<p><strong>{escape(title)}</strong></p>"
    below = "".join(f"<p>{escape(note)}</p>" for note in told)
    return f'<div style="overflow-x: auto">{above}<table>{"".join(lines)}</table>{below}</div>'


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f'<td style="text-align: left">{"–" if value is None else escape(str(value))}</td>'
    return f"<td>{value:,}</td>" if isinstance(value, int) else f"<td>{value:,.4g}</td>"
