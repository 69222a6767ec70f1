"""Still pictures of a sweep, for paper and where no script runs: figures by the cluster's size, days and dollars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from cpsolver.doors.batch.front import Job, jobs_of
from cpsolver.doors.batch.lines import MEASURES, Done, Line, Measure, lines_of
from cpsolver.doors.batch.rows import Row, plan_text
from cpsolver.doors.report.outlook import days_text, total_dollars
from cpsolver.inputs.language import say

_COLOURS = tuple(f"var(--c{number})" for number in range(1, 8))
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""A line has a colour and a dash: 28 pairs, then they come again."""

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 640.0, 340.0, 104.0, 12.0, 48.0
_LOGARITHMIC = 40
"""Clusters that differ by more than this factor are drawn on logarithmic axes."""


def stills(done: Sequence[Done]) -> list[tuple[str, str]]:
    """Titles and pictures (SVG): each measure against the cluster's size, then days and dollars of each job."""
    lines = lines_of(done)
    inks = {line.name: _ink(number) for number, line in enumerate(lines)}
    priced = any(line.best(MEASURES[2]) is not None for line in lines)
    made = [(say("Lines"), _legend({line.name: inks[line.name] for line in lines if line.planned}))]
    for measure in MEASURES if priced else MEASURES[:2]:
        made.append((say("{measure} against cluster size", measure=say(measure.name)), _plot(lines, inks, measure)))
    for job in jobs_of(done):
        title = say("Days and dollars: {model}, {tokens:.4g} tokens", model=job.model, tokens=job.tokens)
        made.append((title, _front(job)))
    return made


def _ink(number: int) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    return f'style="stroke: {colour}; fill: {colour}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _legend(inks: dict[str, str]) -> str:
    entries = []
    for name, ink in inks.items():
        sample = f'<path d="M0 5h28" stroke-width="2" {ink}/>'
        line = f'<svg class="line" viewBox="0 0 28 10" aria-hidden="true">{sample}</svg>'
        entries.append(f"<li>{line}{escape(name)}</li>")
    return f'<ul class="legend">{"".join(entries)}</ul>'


@dataclass(frozen=True)
class PlotAxis:
    """Values `low` to `high` along `length` units from `start`; a negative length goes up the page."""

    low: float
    high: float
    start: float
    length: float
    logarithmic: bool

    def at(self, value: float) -> float:
        """Where a value stands."""
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * self.length, 1)

    def ticks(self) -> list[float]:
        """Round values to write beside the axis, at most seven."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            ticks = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        else:
            step = _round_step((self.high - self.low) / 7)
            ticks = [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, no smaller than `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


def axes(points: Sequence[tuple[float, float]]) -> tuple[PlotAxis, PlotAxis]:
    """The axes for points (size, figure): from nought, or both logarithmic where sizes differ by much."""
    sizes, figures = [size for size, _ in points], [figure for _, figure in points]
    logarithmic = max(sizes) > _LOGARITHMIC * min(sizes) and min(figures) > 0
    across = (min(sizes) / 1.1, max(sizes) * 1.1) if logarithmic else (0.0, max(sizes) * 1.03)
    up = (min(figures) / 1.2, max(figures) * 1.2) if logarithmic else (0.0, max(figures) * 1.08 or 1.0)
    return PlotAxis(*across, _LEFT, _WIDTH, logarithmic), PlotAxis(*up, _TOP + _HEIGHT, -_HEIGHT, logarithmic)


def _plot(lines: Sequence[Line], inks: dict[str, str], measure: Measure) -> str:
    runs = {line.name: list(_runs(line, measure)) for line in lines}
    drawn = {name: [point for run in found for point in run] for name, found in runs.items()}
    every = [(size, figure) for points in drawn.values() for size, figure, _ in points]
    if not every:
        return f"<p>{escape(say('No cell has this figure.'))}</p>"
    x, y = axes(every)
    parts = _frame(x, y, say(measure.name), say("devices in the cluster"), say(measure.unit))
    for name, points in drawn.items():
        parts.append(f'<g {inks[name]} stroke-width="1.5"><path d="{_way(runs[name], x, y)}" style="fill:none"/>')
        for size, figure, row in points:
            figure_text = f"{measure.text(row)} {say(measure.unit)}"
            told = f"{name}\n{say('{size:,} devices: {figure}', size=size, figure=figure_text)}\n{plan_text(row)}"
            at = f'cx="{x.at(size)}" cy="{y.at(figure)}"'
            parts.append(f'<circle {at} r="3" style="stroke: none"><title>{escape(told)}</title></circle>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"])


def _frame(x: PlotAxis, y: PlotAxis, name: str, across: str, up: str) -> list[str]:
    """A plot without its lines: the opened picture, the grid, and what stands along the axes."""
    box = f'viewBox="0 0 {_LEFT + _WIDTH + 10} {_TOP + _HEIGHT + _BOTTOM}"'
    parts = [f'<svg class="plot" {box} role="img" aria-label="{escape(name)}">', *_grid(x, y)]
    parts.append(f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}"/>')
    middle, base = _LEFT + _WIDTH / 2, _TOP + _HEIGHT
    parts.append(f'<text x="{middle}" y="{base + 40}" text-anchor="middle">{escape(across)}</text>')
    turned = f'transform="translate(14 {_TOP + _HEIGHT / 2}) rotate(-90)" text-anchor="middle"'
    return [*parts, f"<text {turned}>{escape(up)}</text>"]


def _front(job: Job) -> str:
    """Every cell of a job by its days and dollars; a line joins those that no other beats in both."""
    points = [(row["days"], row["dollars"]) for _, row in job.cells]
    x, y = axes(points)
    parts = _frame(x, y, say("days and dollars of {model}", model=job.model), say("days"), say("dollars"))
    way = "L".join(f"{x.at(points[place][0])} {y.at(points[place][1])}" for place in job.front)
    parts.append(f'<path d="M{way}" stroke-width="1.5" style="fill: none; stroke: {_COLOURS[0]}"/>')
    for place, (case, row) in enumerate(job.cells):
        sums = say("{days} days, {dollars}", days=days_text(row["days"]), dollars=total_dollars(row["dollars"]))
        told = f"{case.cell.name}\n{sums}\n{plan_text(row)}"
        colour = "var(--good)" if place == job.winner else _COLOURS[0] if place in job.front else "var(--dim)"
        at = f'cx="{x.at(points[place][0])}" cy="{y.at(points[place][1])}" r="{6 if place == job.winner else 4}"'
        parts.append(f'<circle {at} style="fill: {colour}"><title>{escape(told)}</title></circle>')
    return "\n".join([*parts, "</svg>"])


Point = tuple[int, float, Row]
"""A cluster's size, the figure there, and the row that it is from."""


def _runs(line: Line, measure: Measure) -> Iterator[list[Point]]:
    """The line's points, in pieces: a cell without a plan is a gap, not a way straight through it."""
    values = ((row, None if row["step_time_s"] is None else measure.value(row)) for _, row in line.done)
    for known, run in groupby(values, key=lambda pair: pair[1] is not None):
        if known:
            yield [(int(row["num_gpus"]), (value or 0.0) * measure.scale, row) for row, value in run]


def _way(runs: Sequence[Sequence[Point]], x: PlotAxis, y: PlotAxis) -> str:
    """The pieces as an SVG path."""
    return "".join("M" + "L".join(f"{x.at(size)} {y.at(figure)}" for size, figure, _ in run) for run in runs)


def _grid(x: PlotAxis, y: PlotAxis) -> Iterator[str]:
    right, base = _LEFT + _WIDTH, _TOP + _HEIGHT
    for tick in x.ticks():
        yield f'<line class="grid" x1="{x.at(tick)}" y1="{_TOP}" x2="{x.at(tick)}" y2="{base}"/>'
        yield f'<text x="{x.at(tick)}" y="{base + 18}" text-anchor="middle">{tick:,g}</text>'
    for tick in y.ticks():
        yield f'<line class="grid" x1="{_LEFT}" y1="{y.at(tick)}" x2="{right}" y2="{y.at(tick)}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y.at(tick) + 4}" text-anchor="end">{tick:,.10g}</text>'
