"""What a person reads at the end of a sweep: counts, the lines, the cells, the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cpsolver.doors.batch.front import Job, jobs_of, winner_words
from cpsolver.doors.batch.lines import MEASURES, Done, Line, Measure, lines_of
from cpsolver.doors.batch.progress import duration
from cpsolver.doors.batch.rows import Row, plan_text
from cpsolver.doors.batch.run import SweepAnswer, error_text
from cpsolver.doors.report.goals import chance, dollars
from cpsolver.doors.report.outlook import days_text, total_dollars
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import about, percent, plural, seconds

_STATUSES = (later("optimal"), later("feasible"), later("infeasible"), later("unknown"), later("error"))
_MOST_CELLS, _MOST_ERRORS, _WIDE = 60, 10, 120
_TOO_MANY = later("{cells:,} cells: one by one in {database}, or with --csv, --html, --json")
Cells = Sequence[tuple[str, Callable[[Row], str]]]


def summary(answer: SweepAnswer) -> RenderableType:
    """The whole report."""
    lines = lines_of(answer.done)
    parts: list[RenderableType] = [Text(headline(answer), style="bold"), Text(run_line(answer)), ""]
    parts += [LineTable(lines), ""]
    for job in jobs_of(answer.done):
        parts += [FrontTable(job), ""]
    if len(answer.done) <= _MOST_CELLS:
        parts += [CellTable(answer.done), ""]
    else:
        parts += [Text(say(_TOO_MANY, cells=len(answer.done), database=answer.database))]
    return Group(*parts, *errors(answer))


def headline(answer: SweepAnswer) -> str:
    """`120 cells: 118 optimal, 2 error`."""
    counts = Counter(row["status"] for _, row in answer.done)
    told = (
        say("{number:,} {status}", number=counts[status], status=say(status)) for status in _STATUSES if counts[status]
    )
    return say("{cells}: {told}", cells=plural(len(answer.cases), "cell"), told=say(", ").join(told))


def run_line(answer: SweepAnswer) -> str:
    """What this run did, what the database had already, and where all is kept."""
    known = len({case.key for case in answer.cases if case.problem is not None}) - answer.solved
    return say(
        "{solved:,} solved in {took}, {known:,} taken from the database {database}",
        solved=answer.solved,
        took=duration(answer.seconds),
        known=known,
        database=answer.database,
    )


def errors(answer: SweepAnswer) -> list[RenderableType]:
    """The first failures, each once with the first of the cells that have it, and how many more there are."""
    failed = [(case, row) for case, row in answer.done if row["status"] == "error"]
    named: dict[str, list[str]] = {}
    for case, row in failed:
        named.setdefault(str(error_text(case, row)), []).append(case.cell.name)
    parts: list[RenderableType] = [
        Text.from_markup(say("[red]error[/red] {cells}: {told}", cells=escape(_cells(names)), told=escape(told)))
        for told, names in list(named.items())[:_MOST_ERRORS]
    ]
    if len(named) > _MOST_ERRORS:
        parts.append(Text(say("and {more:,} errors more", more=len(named) - _MOST_ERRORS)))
    if any(case.problem is not None for case, _ in failed):
        parts.append(Text(say("--retry-failed solves again those that failed while they ran")))
    return parts


def _cells(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return say("{name} and {more}", name=names[0], more=plural(len(names) - 1, "more cell"))


class LineTable:
    """A row for each line: how its cells ended, and where its best figures are."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        priced = any(line.best(MEASURES[2]) is not None for line in self._lines)
        shown: Sequence[Measure] = MEASURES[:2]
        if priced:
            shown = MEASURES if options.max_width >= _WIDE else (MEASURES[0], MEASURES[2])
        table = _table()
        table.add_column(say("model, chips"), ratio=1, overflow="fold")
        best_of = (say("best {measure}", measure=say(one.name if one.digits else one.unit)) for one in shown)
        for name in (say("plans"), *best_of):
            table.add_column(name, justify="right", no_wrap=True)
        for line in self._lines:
            cells = [say("{planned} of {all}", planned=len(line.planned), all=len(line.done))]
            for measure in shown:
                best = line.best(measure)
                cells.append("–" if best is None else _at(measure.text(best), best["num_gpus"]))
            table.add_row(Text(line.name), *cells)
        yield table


def _at(figure: str, size: int) -> str:
    return say("{figure} at {size:,}", figure=figure, size=size)


class FrontTable:
    """The cells of a job that no other beats in both days and dollars, the soonest first, and the winner."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        job = self._job
        yield Text(say("{task}, {tokens:.4g} tokens", task=job.task, tokens=job.tokens), style="bold")
        yield Text(say("than these no other cell is both sooner and cheaper:"))
        table = _table()
        table.add_column(say("cell"), ratio=1, overflow="fold")
        timed = any(row["deadline_probability"] is not None for _, row in job.cells)
        for name in ("GPUs", later("days"), "80 %", later("dollars"), "80 %", *([later("in time")] if timed else [])):
            table.add_column(say(name), justify="right", no_wrap=True)
        for place in job.front:
            case, row = job.cells[place]
            cells = [f"{row['devices']:,}", *_range(row, "days", days_text), *_range(row, "dollars", total_dollars)]
            cells += [_number(row, "deadline_probability", chance)] if timed else []
            table.add_row(Text(case.cell.name), *cells, style="green" if place == job.winner else None)
        yield table
        yield Text(winner_words(job), style="green" if job.winner is not None else "yellow")


_FIRST: Cells = (
    (later("status"), lambda row: say(row["status"])),
    ("GPUs", lambda row: "–" if row["devices"] is None else f"{row['devices']:,}"),
    (later("step time"), lambda row: _number(row, "step_time_s", seconds)),
)
_RATES: Cells = (
    ("tokens/s", lambda row: MEASURES[0].text(row)),
    ("MFU", lambda row: _number(row, "mfu", percent)),
)
_TOTALS: Cells = (
    (later("days"), lambda row: _number(row, "days", days_text)),
    (later("$ in all"), lambda row: _number(row, "dollars", total_dollars)),
)
_COST: Cells = ((later("$/M tokens"), lambda row: _number(row, "dollars_per_million_tokens", dollars)),)
_MEMORY: Cells = ((later("memory"), lambda row: _number(row, "memory_share", percent)),)
_INTERVAL: Cells = ((later("80 % interval"), lambda row: _interval(row)),)


def _shown(wide: bool, days: bool, totals: bool, priced: bool) -> Cells:
    """The columns: dollars, where they are known, come before rates in a narrow terminal."""
    whole = (_TOTALS if totals else _TOTALS[:1]) if days else ()
    cost = _COST if priced else ()
    if wide:
        return (*_FIRST, *_RATES, *_INTERVAL, *whole, *cost, *_MEMORY)
    if totals:
        return (*_FIRST, *whole)
    return (*_FIRST, *(_RATES[:1] if priced or days else _RATES), *whole, *cost)


class CellTable:
    """A row for each cell; what a wide terminal has room for: interval, memory and the plan in one line."""

    def __init__(self, done: Sequence[Done]) -> None:
        self._done = done

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= _WIDE
        columns = ("days", "dollars", "dollars_per_million_tokens")
        known = (any(row[name] is not None for _, row in self._done) for name in columns)
        cells = _shown(wide, *known)
        table = _table()
        table.add_column(say("cell"), ratio=1, overflow="fold")
        for name, _ in cells:
            table.add_column(say(name), justify="left" if name == "status" else "right", no_wrap=True)
        if wide:
            table.add_column(say("plan"), ratio=2, overflow="fold")
        for case, row in self._done:
            plan = [Text(plan_text(row) or "–")] if wide else []
            table.add_row(Text(case.cell.name), *(cell(row) for _, cell in cells), *plan)
        yield table


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True, header_style="bold")


def _number(row: Row, name: str, text: Callable[[float], str]) -> str:
    return "–" if row[name] is None else text(row[name])


def _range(row: Row, name: str, text: Callable[[float], str]) -> tuple[str, str]:
    """A mean and its interval."""
    return text(row[name]), f"{text(row[f'{name}_low'])}–{text(row[f'{name}_high'])}"


def _interval(row: Row) -> str:
    step = row["step_time_s"]
    if step is None:
        return "–"
    return f"{about(row['step_time_low_s'], step)}–{about(row['step_time_high_s'], step)}"
