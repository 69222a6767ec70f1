"""Predicted against measured as one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from cpsolver.evidence.runs.validation import Validation
from cpsolver.inputs.language import say, spoken
from cpsolver.inputs.text import percent, plural, seconds, signed_percent

_COLOURS = ("#3b82f6", "#f97316", "#16a34a", "#dc2626", "#a855f7", "#0d9488", "#ca8a04", "#ec4899")
_SHAPES = (
    '<circle cx="{x}" cy="{y}" r="4"',
    '<path d="M{x} {y}m-4-4h8v8h-8z"',
    '<path d="M{x} {y}m0-5.5l5.5 5.5-5.5 5.5-5.5-5.5z"',
    '<path d="M{x} {y}m0-5l5 9h-10z"',
)
"""A source has a colour and a shape: 32 pairs, then they come again."""

_SIZE, _LEFT, _BOTTOM, _TOP = 560.0, 70.0, 50.0, 10.0
_BAND = 0.1
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2937; --faint: #d1d5db; --paper: #ffffff; --band: #9ca3af33 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e7eb; --faint: #374151; --paper: #111827; --band: #9ca3af33 }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
svg.plot { width: 100%; max-width: 42rem; height: auto; display: block }
svg text { fill: var(--ink); font-size: 12px }
.grid { stroke: var(--faint); stroke-width: 1 } .frame { fill: none; stroke: var(--ink) }
.same { stroke: var(--ink); stroke-dasharray: 5 4 } .band { fill: var(--band) }
.points > * { fill-opacity: .7; stroke: var(--paper); stroke-width: .7 }
ul { list-style: none; padding: 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)) }
li svg { width: 14px; height: 14px; vertical-align: -2px; margin-right: .4rem }
"""


@dataclass(frozen=True)
class _Point:
    measured: float
    predicted: float
    source: str
    title: str


def scatter_html(validation: Validation) -> str:
    """The page: step time and peak memory, predicted against measured, both axes logarithmic.

    A point's tooltip names the row. Text from the table is escaped.
    """
    times, sizes = _times(validation), _sizes(validation)
    sources = sorted({point.source for point in times})
    marks = {source: _mark(number) for number, source in enumerate(sources)}
    score = validation.time
    told = (
        ""
        if score is None
        else say(", off by {mean} on average (median {median})", mean=percent(score.mean), median=percent(score.median))
    )
    note = say(
        "{runs}{told}. Dashed: the same. Band: 10 % either way. Tooltips name the runs.",
        runs=plural(len(times), "run"),
        told=told,
    )
    body = [
        f"<h1>{say('Predicted against measured')}</h1>",
        f"<p>{note}</p>",
        _legend(marks),
        f"<h2>{say('Step time')}</h2>",
        _plot(times, marks, "s", (say("step time"), say("measured step time, s"), say("predicted step time, s"))),
        f"<h2>{say('Peak memory')}</h2>",
        _plot(sizes, marks, "GiB", _peaks()),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    title = f"<title>{say('apss-cp: predicted against measured')}</title>"
    lines = ["<!DOCTYPE html>", f'<html lang="{spoken()}"><head>{head}{title}<style>{_STYLE}</style></head><body>']
    return "\n".join([*lines, *body, "</body></html>"])


def _peaks() -> tuple[str, str, str]:
    return (
        say("peak memory of a device"),
        say("measured peak memory of a device, GiB"),
        say("predicted peak memory of a device, GiB"),
    )


def _times(validation: Validation) -> list[_Point]:
    points = []
    for one in validation.scored:
        predicted = one.prediction.step_time_s
        told = say(
            "measured {measured}, predicted {predicted} ({error})",
            measured=seconds(one.measured_s),
            predicted=seconds(predicted),
            error=signed_percent(one.error),
        )
        points.append(_Point(one.measured_s, predicted, one.run.source, _title(one.run.id, one.run.source, told)))
    return points


def _sizes(validation: Validation) -> list[_Point]:
    points = []
    for one in validation.scored:
        run, predicted, error = one.run, one.prediction.memory_gib, one.memory_error
        if run.peak_mem_gib is not None and error is not None:
            told = say(
                "measured {measured:.1f} GiB ({kind}), predicted {predicted:.1f} GiB ({error})",
                measured=run.peak_mem_gib,
                kind=run.peak_mem_kind or say("unstated"),
                predicted=predicted,
                error=signed_percent(error),
            )
            points.append(_Point(run.peak_mem_gib, predicted, run.source, _title(run.id, run.source, told)))
    return points


def _title(name: str, source: str, told: str) -> str:
    return f"{name}\n{source or say('not stated')}\n{told}"


def _mark(number: int) -> str:
    """A marker's tag without its end, with {x} and {y} to fill in."""
    shape = _SHAPES[number // len(_COLOURS) % len(_SHAPES)]
    return f'{shape} fill="{_COLOURS[number % len(_COLOURS)]}"'


def _legend(marks: dict[str, str]) -> str:
    items = []
    for source, mark in marks.items():
        sample = f'<svg viewBox="0 0 14 14" aria-hidden="true">{mark.format(x=7, y=7)}/></svg>'
        items.append(f"<li>{sample}{escape(source or say('not stated'))}</li>")
    return f"<ul>{''.join(items)}</ul>"


class _Axis:
    """A logarithmic axis from `low` to `high`, the same for both directions."""

    def __init__(self, points: Sequence[_Point]) -> None:
        values = [value for point in points for value in (point.measured, point.predicted)]
        self.low, self.high = min(values) / 1.15, max(values) * 1.15

    def x(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(_LEFT + share * _SIZE, 1)

    def y(self, value: float) -> float:
        return round(_TOP + _SIZE - (self.x(value) - _LEFT), 1)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of each power of ten; the powers alone where that is too many, the middle where none is in it."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        steps = (1, 2, 5) if last - first <= 4 else (1,)
        all_ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        return [tick for tick in all_ticks if self.low <= tick <= self.high] or [math.sqrt(self.low * self.high)]


def _plot(points: Sequence[_Point], marks: dict[str, str], unit: str, what: tuple[str, str, str]) -> str:
    """`what`: what is drawn, and the titles of the axis across and of that up."""
    if not points:
        return f"<p>{say('Nothing was measured and predicted.')}</p>"
    axis = _Axis(points)
    right, bottom = _LEFT + _SIZE, _TOP + _SIZE
    frame = f'x="{_LEFT}" y="{_TOP}" width="{_SIZE}" height="{_SIZE}"'
    across, down = _LEFT + _SIZE / 2, _TOP + _SIZE / 2
    parts = [
        f'<svg class="plot" viewBox="0 0 {right + 10} {bottom + _BOTTOM}" role="img" aria-label="{what[0]}">',
        f'<clipPath id="clip-{unit}"><rect {frame}/></clipPath>',
        *_grid(axis),
        f'<g clip-path="url(#clip-{unit})"><polygon class="band" points="{_band(axis)}"/>',
        f'<line class="same" x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{_TOP}"/></g>',
        f'<rect class="frame" {frame}/>',
        f'<text x="{across}" y="{bottom + 42}" text-anchor="middle">{what[1]}</text>',
        f'<text transform="translate(16 {down}) rotate(-90)" text-anchor="middle">',
        f'{what[2]}</text><g class="points">',
    ]
    for point in points:
        mark = marks[point.source].format(x=axis.x(point.measured), y=axis.y(point.predicted))
        parts.append(f"{mark}><title>{escape(point.title)}</title></{mark[1:].split()[0]}>")
    return "\n".join([*parts, "</g></svg>"])


def _grid(axis: _Axis) -> Iterator[str]:
    right, bottom = _LEFT + _SIZE, _TOP + _SIZE
    for tick in axis.ticks():
        x, y = axis.x(tick), axis.y(tick)
        yield f'<line class="grid" x1="{x}" y1="{_TOP}" x2="{x}" y2="{bottom}"/>'
        yield f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{right}" y2="{y}"/>'
        yield f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{tick:.3g}</text>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{tick:.3g}</text>'


def _band(axis: _Axis) -> str:
    """Corners of the band around the diagonal; the plot's frame cuts off what is beyond."""
    low, high, more, less = axis.low / 2, axis.high * 2, 1 + _BAND, 1 - _BAND
    corners = ((low, low * more), (high, high * more), (high, high * less), (low, low * less))
    return " ".join(f"{axis.x(x)},{axis.y(y)}" for x, y in corners)
