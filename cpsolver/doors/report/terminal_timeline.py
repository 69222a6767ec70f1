"""A plan's pipeline over time in a terminal: a line a stage, a character a moment, and how long each stage waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

from cpsolver.cost.schedules import SCHEDULES
from cpsolver.doors.report.layout import section
from cpsolver.doors.report.pipeline_run import PipelineRun, SpanKind, run_pipeline
from cpsolver.doors.report.pipeline_view import Window, cells, chosen_stages, windows
from cpsolver.evaluation.evaluation import Evaluation
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import count, percent, seconds
from cpsolver.plans.strategy import Strategy

_MOST_PASSES = 20_000  # more are drawn with the first microbatches only: some hundredths of a second
_MOST_LINES = 12
_LEAST_CELLS = 20
_GAP = 3  # columns of the break between two windows

_SIGNS: dict[SpanKind, tuple[str, str, str, str]] = {
    "forward": ("▒", "F", "cyan", later("forward")),
    "recompute": ("█", "B", "blue", ""),
    "backward": ("█", "B", "blue", later("backward")),
    "idle": ("·", ".", "dim", later("waiting")),
    "data_parallel": ("░", "+", "magenta", later("gradients, optimizer")),
    "optimizer": ("░", "+", "magenta", ""),
}
"""What stands for it in UTF-8 and elsewhere, its style, and its name in the legend, in which some have no entry."""


class TerminalTimeline:
    """The picture, in the width that there is."""

    def __init__(self, strategy: Strategy, evaluation: Evaluation, microbatches: int) -> None:
        self._plan = strategy, evaluation, microbatches

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        utf8 = console.encoding.lower().startswith("utf")
        yield from drawn(run_pipeline(*self._plan, _MOST_PASSES), options.max_width, utf8)


def timeline_section(strategy: Strategy, evaluation: Evaluation, microbatches: int, whose: str) -> list[RenderableType]:
    """The section of a report; nothing for a plan of one stage, which has no pipeline."""
    if strategy.pp == 1:
        return []
    return section(
        say("The pipeline over time: a step{whose}", whose=whose), TerminalTimeline(strategy, evaluation, microbatches)
    )


def drawn(run: PipelineRun, width: int, utf8: bool = True) -> Iterator[RenderableType]:
    """A table with a line a stage, the times below it, and what the characters mean."""
    shown, stages = windows(run), chosen_stages(run.strategy.pp, _MOST_LINES)
    chips = [run.evaluation.stages[stage].chip for stage in stages]
    labels = [
        f"{stage} {chip}" if len(set(chips)) > 1 else f"{stage}" for stage, chip in zip(stages, chips, strict=True)
    ]
    label_width = min(16, max(cell_len(say("stage")), *map(len, labels)))
    idle_width = len("100.0 %") if run.whole else 0
    room = max(_LEAST_CELLS, width - label_width - idle_width - (2 if run.whole else 1) - _GAP * (len(shown) - 1))
    columns = Column(width=label_width, overflow="ellipsis", no_wrap=True), Column(no_wrap=True)
    table = Table.grid(*columns, padding=(0, 1, 0, 0))
    if run.whole:
        table.add_column(justify="right", no_wrap=True)
        table.add_row(say("stage"), "", say("waits"), style="dim")
    for label, stage in zip(labels, stages, strict=True):
        waits = [percent(float(run.idle_share[stage]))] if run.whole else []
        table.add_row(Text(label), _line(run, stage, shown, room // len(shown), utf8), *waits)
    table.add_row("", Text(_times(shown, room // len(shown)), style="dim"))
    yield table
    yield Text.assemble(*_legend(run, shown, stages, utf8))


def _line(run: PipelineRun, stage: int, shown: Sequence[Window], each: int, utf8: bool) -> Text:
    line = Text()
    for number, window in enumerate(shown):
        line.append((" ⋯ " if utf8 else " ~ ") if number else "", style="dim")
        for kind, same in groupby(cells(run.by_stage[stage], window, each)):
            line.append(_SIGNS[kind][not utf8] * len(list(same)), style=_SIGNS[kind][2])
    return line


def _times(shown: Sequence[Window], each: int) -> str:
    """Where each window starts and ends, below it."""
    parts, end_s = [], shown[-1][1]
    for start_s, stop_s in shown:
        left, right = seconds(start_s, of=end_s) if start_s else "0", seconds(stop_s, of=end_s)
        parts.append(left + right.rjust(each - len(left)) if len(left) + len(right) < each else left.ljust(each))
    return (" " * _GAP).join(parts)


def _legend(run: PipelineRun, shown: Sequence[Window], stages: Sequence[int], utf8: bool) -> Iterator[tuple[str, str]]:
    used = {span.kind for stage in stages for span in run.by_stage[stage]}
    for kind, (*letters, style, name) in _SIGNS.items():
        if kind in used and name:
            yield letters[not utf8], style
            recomputed = say(", recomputation") if kind == "backward" and "recompute" in used else ""
            yield f" {say(name)}{recomputed}  ", "dim"
    told = []
    if len(shown) > 1:
        told.append(say("the middle, which repeats itself, is left out"))
    if not run.whole:
        told.append(
            say(
                "drawn with {shown} of {microbatches} microbatches",
                shown=count(run.shown),
                microbatches=count(run.microbatches),
            )
        )
    if len(stages) < run.strategy.pp:
        told.append(say("{stages} of {pp} stages", stages=len(stages), pp=run.strategy.pp))
    drawn_as = SCHEDULES[run.strategy.schedule].drawn_as
    if drawn_as != run.strategy.schedule:
        told.append(say("drawn as {label}", label=SCHEDULES[drawn_as].label))
    if run.whole:
        told.append(
            say("waits: share of the pipeline's {pipeline_s}, for transfers too", pipeline_s=seconds(run.pipeline_s))
        )
    yield "\n" + "; ".join(told), "dim"
