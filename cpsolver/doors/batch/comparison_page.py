"""A comparison as its page shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cpsolver.doors.batch.compare import Answer, Comparison, size_name
from cpsolver.doors.batch.decision import comparison_document, comparison_records, comparison_title, verdict
from cpsolver.doors.report.choices import Cell, ChoicesPage, Column, Detail, Pick
from cpsolver.doors.report.document import result_document
from cpsolver.doors.report.goals import chance, dollars
from cpsolver.doors.report.outlook import MeanRange, days_text, total_dollars
from cpsolver.explanation.closest import strategy_text
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import count, csv_text, seconds

_STATUS, _PLAN = Column(later("status"), text=True), Column(later("plan, or why none"), text=True)
_COLUMNS = (
    Column("GPUs", better="lower"),
    Column(later("step time"), "s", better="lower"),
    Column(later("days"), better="lower"),
    Column(later("dollars"), "$", better="lower"),
    Column(later("in time"), "%", better="higher"),
    Column(later("$ an hour"), "$", better="lower"),
    Column(later("even at"), "$"),
)
_NOTHING: Cell = ("–", None)


def comparison_page(found: Comparison) -> ChoicesPage:
    """What the page shows: every option, and the same with a node more and a node less."""
    rows = list(_rows(found))
    known = [any(cells[place][1] is not None for *_, cells in rows) for place in range(len(_COLUMNS))]
    shown = [place for place, there in enumerate(known) if there or place == 0]
    names = {_COLUMNS[place].name for place in shown}
    choices = []
    for name, line, answer, cells in rows:
        figures = (cells[place] for place in shown)
        why = (reason.rstrip("。") for reason in answer.result.reasons)
        told = say("; ").join(why) if answer.plan is None else strategy_text(answer.plan.strategy)
        whole = ((say(answer.result.status), None), *figures, (told, None))
        won = found.winner is not None and answer is found.options[found.winner].answer
        choices.append(Pick(name, line, answer.problem.model.name, whole, _detail(answer), won))
    return ChoicesPage(
        brand=say("apss-cp: a decision"),
        title=comparison_title(found),
        what=later("option"),
        said=list(verdict(found)),
        columns=(_STATUS, *(_COLUMNS[place] for place in shown), _PLAN),
        choices=choices,
        axes=("days", "dollars") if {"days", "dollars"} <= names else ("GPUs", "days" if "days" in names else "GPUs"),
        notes=[],
        stills=[],
        document=comparison_document(found),
        csv=_csv(found),
        file="apss-cp-comparison",
    )


def _rows(found: Comparison) -> Iterator[tuple[str, str, Answer, tuple[Cell, ...]]]:
    """Every option and its neighbours in size: name, the option's name, the answer, and what stands in the columns."""
    for option in found.options:
        name = option.answer.name
        yield name, name, option.answer, _cells(option.answer, option.break_even)
        for other in option.resized:
            yield say("{name}, {size}", name=name, size=size_name(other.name)), name, other, _cells(other, None)


def _cells(answer: Answer, even: float | None) -> tuple[Cell, ...]:
    plan, outlook = answer.plan, answer.outlook
    return (
        _cell(None if plan is None else plan.strategy.devices, count),
        _cell(None if plan is None else plan.evaluation.step_time_s, seconds),
        _range(outlook.days, days_text),
        _range(outlook.dollars, total_dollars),
        _cell(outlook.deadline_probability, chance, 100.0),
        _cell(answer.dollars_per_hour, dollars),
        _cell(even, dollars),
    )


def _cell(value: float | None, text: Callable[[float], str], scale: float = 1.0) -> Cell:
    return _NOTHING if value is None else (text(value), value * scale)


def _range(value: MeanRange | None, text: Callable[[float], str]) -> Cell:
    if value is None:
        return _NOTHING
    return f"{text(value.mean)} ({text(value.low)}–{text(value.high)})", value.mean


def _detail(answer: Answer) -> Detail:
    plans = result_document(answer.problem, answer.result)["plans"]
    strategies = [plan.strategy for plan in answer.result.plans]
    return Detail(
        [say("{said}.", said=say(answer.result.status).capitalize()), *answer.result.reasons], plans, strategies
    )


def _csv(found: Comparison) -> str:
    """A row an option."""
    records = comparison_records(found)
    return csv_text(list(records[0]), (record.values() for record in records))
