"""A sweep as its page shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from cpsolver.doors.batch.files import document, sweep_csv
from cpsolver.doors.batch.front import Job, jobs_of, task_words, winner_words
from cpsolver.doors.batch.lines import Done, lines_of
from cpsolver.doors.batch.rows import Row, plan_text, reasons_text
from cpsolver.doors.batch.run import SweepAnswer, error_text
from cpsolver.doors.batch.stills import stills
from cpsolver.doors.batch.summary import headline, run_line
from cpsolver.doors.report.choices import Cell, ChoicesPage, Column, Detail, Pick
from cpsolver.doors.report.goals import chance, dollars
from cpsolver.doors.report.outlook import days_text, total_dollars
from cpsolver.inputs.language import ENGLISH, later, say, spoken
from cpsolver.inputs.text import count, percent, seconds
from cpsolver.problem.problem import Problem
from cpsolver.problem.strategy_file import strategy_from_fields

_Text = Callable[[float], str]
_FIGURES: tuple[tuple[Column, str, _Text, float], ...] = (
    (Column(later("devices"), better="lower", size=True), "devices", count, 1.0),
    (Column(later("step time"), "s", better="lower"), "step_time_s", seconds, 1.0),
    (Column("tokens/s", better="higher"), "tokens_per_s", count, 1.0),
    (Column(later("tokens/s per device"), better="higher"), "tokens_per_s_per_gpu", count, 1.0),
    (Column("MFU", "%", better="higher"), "mfu", percent, 100.0),
    (Column(later("days"), better="lower"), "days", days_text, 1.0),
    (Column(later("$ in all"), "$", better="lower"), "dollars", total_dollars, 1.0),
    (Column(later("in time"), "%", better="higher"), "deadline_probability", chance, 100.0),
    (Column(later("$ per hour"), "$", better="lower"), "dollars_per_hour", dollars, 1.0),
    (Column(later("$ per M tokens"), "$", better="lower"), "dollars_per_million_tokens", dollars, 1.0),
    (Column(later("memory"), "%", better="lower"), "memory_share", percent, 100.0),
)
"""Columns of the table: which of a row's, how it is written, and what makes it the column's unit."""
_STATUS, _PLAN = Column(later("status"), text=True), Column(later("plan, or why none"), text=True)
_MOST_WHOLE = 250
"""Of more cells the page has the best plan's key figures only, so that it stays a few megabytes."""
_BRIEF = later("There are too many cells for the parts of each one's time and memory: --json has them, and all plans.")
_NO_DOLLARS = later("Without prices (cluster.prices) there are no figures per dollar.")
_IN_ENGLISH = later("Why a cell has no plan is in English where an older version solved it.")


def sweep_page(answer: SweepAnswer) -> ChoicesPage:
    """What the page shows."""
    done, jobs = answer.done, jobs_of(answer.done)
    shown = [figure for figure in _FIGURES if any(row[figure[1]] is not None for _, row in done)] or [_FIGURES[0]]
    names = {column.name for column, *_ in shown}
    weighed = ("days", "$ in all") if {"days", "$ in all"} <= names else (shown[0][0].name, _rate(names))
    brief = len(done) > _MOST_WHOLE
    return ChoicesPage(
        brand=say("apss-cp: a sweep"),
        title=answer.sweep.file,
        what=later("cell"),
        said=[say("{headline}. {run}.", headline=headline(answer), run=run_line(answer))],
        columns=(_STATUS, *(column for column, *_ in shown), _PLAN),
        choices=list(_choices(done, jobs, shown, brief)),
        axes=weighed,
        notes=[*_winners(jobs), *_notes(done, brief)],
        stills=stills(done),
        document=_without_plans(answer) if brief else document(answer),
        csv=sweep_csv(answer),
        file="apss-cp-sweep",
    )


def _winners(jobs: list[Job]) -> Iterator[str]:
    """The winner of each job, which is named where there are several."""
    for job in jobs:
        told = winner_words(job)
        yield told if len(jobs) == 1 else say("{name}: {reason}", name=job.task, reason=told)


def _notes(done: tuple[Done, ...], brief: bool) -> Iterator[str]:
    if not any(row["dollars_per_hour"] is not None for _, row in done):
        yield say(_NO_DOLLARS)
    if brief:
        yield say(_BRIEF)
    if spoken() != ENGLISH and any(
        spoken() not in json.loads(row["reasons_translated"] or "{}") and reasons_text(row) for _, row in done
    ):
        yield say(_IN_ENGLISH)


def _rate(names: set[str]) -> str:
    return "tokens/s" if "tokens/s" in names else "devices"


def _choices(
    done: tuple[Done, ...], jobs: list[Job], shown: list[tuple[Column, str, _Text, float]], brief: bool
) -> Iterator[Pick]:
    line_of = {id(row): line.name for line in lines_of(done) for _, row in line.done}
    winners = {job.places[job.winner] for job in jobs if job.winner is not None}
    for place, (case, row) in enumerate(done):
        figures = (_figure(row, name, text, scale) for _, name, text, scale in shown)
        wrong = error_text(case, row)
        told = plan_text(row) or wrong or (reasons_text(row, spoken()) or "").partition("\n")[0]
        model, sequence = row["model"] or "?", row["sequence_length"]
        task = model if sequence is None else task_words(model, sequence)
        cells = ((say(row["status"]), None), *figures, (told, None))
        detail = _detail(case.problem, row, wrong, brief)
        yield Pick(case.cell.name, line_of[id(row)], task, cells, detail, place in winners)


def _figure(row: Row, name: str, text: _Text, scale: float) -> Cell:
    value = row[name]
    return ("–", None) if value is None else (text(value), value * scale)


def _without_plans(answer: SweepAnswer) -> dict[str, Any]:
    whole = document(answer)
    return {**whole, "cells": [{**cell, "plans": None, "proof": None} for cell in whole["cells"]]}


def _detail(problem: Problem | None, row: Row, wrong: str | None, brief: bool) -> Detail:
    """What is known of a cell: its plans, or why it has none."""
    plans = json.loads(row["plans"] or "[]")
    strategies = [strategy_from_fields(plan["strategy"], problem) for plan in plans]
    said = [say("{said}.", said=say(row["status"]).capitalize())]
    said += [wrong] if wrong else []
    return Detail([*said, *(reasons_text(row, spoken()) or "").splitlines()], plans, strategies, brief)
