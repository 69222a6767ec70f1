"""A plan's pipeline over time as SVG: a row a stage, a box a pass; a long step by its start and its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cpsolver.cost.schedules import SCHEDULES
from cpsolver.doors.report.html.bars import legend
from cpsolver.doors.report.html.elements import Html, scrolling, tag, text
from cpsolver.doors.report.pipeline_run import KINDS, PipelineRun, Span, SpanKind
from cpsolver.doors.report.pipeline_view import Window, cells, chosen_stages, windows
from cpsolver.inputs.language import say
from cpsolver.inputs.text import count, percent, seconds

_WIDTH, _LEFT, _RIGHT, _GAP = 1000.0, 118.0, 62.0, 34.0
_ROW, _BOX, _TOP, _BOTTOM = 24.0, 19.0, 22.0, 26.0
_MOST_BOXES = 1_200  # of some hundred bytes each
_MOST_ROWS, _FEWER_ROWS = 64, 24
_CELLS = 240  # in a window whose passes are too many to draw one by one
_LABEL = 16  # characters of a row's label
_TICKS = 5
_NUMBERED = 13.0  # a box at least so wide has its microbatch's number in it


@dataclass(frozen=True)
class _Scale:
    """Where a window's times stand."""

    window: Window
    left: float
    width: float

    def x(self, time_s: float) -> float:
        low, high = self.window
        return self.left + (min(max(time_s, low), high) - low) / (high - low) * self.width


def timeline_figure(run: PipelineRun) -> Html:
    """The figure with its legend and what it leaves out."""
    shown, stages = windows(run), chosen_stages(run.strategy.pp, _MOST_ROWS)
    if _boxes(run, shown, stages) > _MOST_BOXES:
        stages = chosen_stages(run.strategy.pp, _FEWER_ROWS)
    singly = _boxes(run, shown, stages) <= _MOST_BOXES
    used = {span.kind for stage in stages for span in run.by_stage[stage]}
    names: dict[str, str] = {kind: say(name) for kind, name in KINDS.items() if kind in used}
    notes = tag("figcaption", "; ".join(_notes(run, shown, stages, singly)) + ".")
    drawing = scrolling(say("Pipeline timeline"), _drawing(run, shown, stages, singly))
    return tag("figure", legend(names), drawing, notes, class_="timeline")


def _boxes(run: PipelineRun, shown: Sequence[Window], stages: Sequence[int]) -> int:
    return sum(len(_within(run.by_stage[stage], window)) for stage in stages for window in shown)


def _within(spans: Sequence[Span], window: Window) -> list[Span]:
    return [s for s in spans if s.kind != "idle" and s.end_s > window[0] and s.start_s < window[1]]


def _notes(run: PipelineRun, shown: Sequence[Window], stages: Sequence[int], singly: bool) -> Iterator[str]:
    yield (
        say("The schedule run event by event: {step_s}", step_s=seconds(run.step_s))
        if run.whole
        else say("The schedule run event by event")
    )
    if len(shown) > 1:
        middle = shown[1][0] - shown[0][1]
        cut = say("the {middle} in the middle, which repeat themselves, are left out", middle=seconds(middle))
        yield cut if run.whole else say("the middle, which repeats itself, is left out")
    if not run.whole:
        yield say(
            "drawn with {shown} of {microbatches} microbatches",
            shown=count(run.shown),
            microbatches=count(run.microbatches),
        )
    if len(stages) < run.strategy.pp:
        yield say("{stages} of {pp} stages", stages=len(stages), pp=run.strategy.pp)
    if not singly:
        yield say("too many passes to draw each: a box is what a stage mostly does")
    if (schedule := SCHEDULES[run.strategy.schedule]).drawn_as != run.strategy.schedule:
        yield say(
            "the {label} schedule is drawn as {other}", label=schedule.label, other=SCHEDULES[schedule.drawn_as].label
        )
    yield say("the percentage is the share of the pipeline's time that a stage waits, for transfers too")


def _drawing(run: PipelineRun, shown: Sequence[Window], stages: Sequence[int], singly: bool) -> Html:
    height = _TOP + _ROW * len(stages) + _BOTTOM
    room = (_WIDTH - _LEFT - _RIGHT - _GAP * (len(shown) - 1)) / len(shown)
    scales = [_Scale(window, _LEFT + number * (room + _GAP), room) for number, window in enumerate(shown)]
    waits = [percent(float(run.idle_share[stage])) for stage in stages]
    said = say("{pp} pipeline stages, a step of {end_s}. Waiting: ", pp=run.strategy.pp, end_s=seconds(run.end_s))
    said += ", ".join(
        say("stage {stage} {share}", stage=stage, share=share) for stage, share in zip(stages, waits, strict=True)
    )
    parts = [tag("title", said), *_axis(scales, height - _BOTTOM)]
    if run.whole:
        parts.append(tag("text", "waits", x=_WIDTH, y=14, class_="end dim"))
    for number, stage in enumerate(stages):
        top = _TOP + number * _ROW
        row = [_row_label(run, stage, top)]
        for scale in scales:
            row.append(_rect("idle", scale.left, top, scale.width))
            boxes = _each_pass(run, stage, scale, top) if singly else _mostly(run, stage, scale, top)
            row += list(boxes)
        if run.whole:
            row.append(tag("text", waits[number], x=_WIDTH, y=_number(top + 14), class_="end"))
        parts.append(tag("g", *row))
    return tag("svg", *parts, viewBox=f"0 0 {_number(_WIDTH)} {_number(height)}", role="img", aria_label=said)


def _row_label(run: PipelineRun, stage: int, top: float) -> Html:
    of_stage = run.evaluation.stages[stage]
    whole = f"{stage} · {of_stage.chip}"
    cut = whole if len(whole) <= _LABEL else whole[: _LABEL - 1] + "…"
    told = tag(
        "title", say("stage {stage}: {chip}, {layers} layers", stage=stage, chip=of_stage.chip, layers=of_stage.layers)
    )
    return tag("text", told, cut, x=0, y=_number(top + 14))


def _each_pass(run: PipelineRun, stage: int, scale: _Scale, top: float) -> Iterator[Html]:
    for span in _within(run.by_stage[stage], scale.window):
        left, right = scale.x(span.start_s), scale.x(span.end_s)
        yield _rect(span.kind, left, top, right - left, _tooltip(run, span))
        label = str(span.microbatch)
        if span.kind in ("forward", "backward") and right - left >= max(_NUMBERED, 7.0 * len(label)):
            yield tag("text", label, x=_number((left + right) / 2), y=_number(top + 13), class_="n")


def _mostly(run: PipelineRun, stage: int, scale: _Scale, top: float) -> Iterator[Html]:
    row = cells(run.by_stage[stage], scale.window, _CELLS)
    step, start = scale.width / _CELLS, 0
    for at in range(1, _CELLS + 1):
        if at == _CELLS or row[at] != row[start]:
            if row[start] != "idle":
                yield _rect(row[start], scale.left + start * step, top, (at - start) * step)
            start = at


def _tooltip(run: PipelineRun, span: Span) -> str:
    """What the pointer shows of a box."""
    chunk = say(", chunk {chunk}", chunk=span.chunk) if run.strategy.vpp > 1 and span.chunk >= 0 else ""
    which = (
        say(" of microbatch {microbatch}{chunk}", microbatch=span.microbatch, chunk=chunk)
        if span.microbatch >= 0
        else ""
    )
    end_s = run.end_s
    return say(
        "{label}{which}: {start_s} to {end_s}",
        label=say(span.label),
        which=which,
        start_s=seconds(span.start_s, of=end_s),
        end_s=seconds(span.end_s, of=end_s),
    )


def _rect(kind: SpanKind, x: float, y: float, width: float, told: str = "") -> Html:
    """Written out by hand: a page has thousands."""
    inside = f"<title>{text(told)}</title>" if told else ""
    place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(_BOX)}"'
    return Html(f'<rect class="k-{kind}" {place}>{inside}</rect>')


def _axis(scales: Sequence[_Scale], bottom: float) -> Iterator[Html]:
    end_s = scales[-1].window[1]
    steps = _TICKS if len(scales) == 1 else _TICKS - 2
    for number, scale in enumerate(scales):
        low, high = scale.window
        for step in range(steps + 1):
            time_s = low + (high - low) * step / steps
            x = _number(scale.x(time_s))
            yield tag("line", x1=x, x2=x, y1=_TOP - 4, y2=_number(bottom), class_="tick")
            side = "start" if step == 0 else "end" if step == steps else "middle"
            yield tag("text", seconds(time_s, of=end_s), x=x, y=_number(bottom + 16), class_=f"dim {side}")
        if number:
            x = _number(scale.left - _GAP / 2)
            yield tag("text", "⋯", x=x, y=_number((_TOP + bottom) / 2 + 4), class_="middle dim")


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
