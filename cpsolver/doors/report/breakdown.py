"""Where one plan's time goes, and where its memory goes stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from cpsolver.doors.report.degrees import layer_traffic
from cpsolver.doors.report.text import part_names
from cpsolver.evaluation.evaluation import Evaluation, StageEvaluation
from cpsolver.inputs.language import later, say
from cpsolver.inputs.text import bar, percent, runs, seconds, span_text
from cpsolver.plans.strategy import Strategy
from hw_specs.units import bytes_to_gib

_MOST_LINES = 16  # a deeper pipeline is shown by its ends and its fullest stages
_Line = tuple[str, StageEvaluation]
_PARTS = {
    "weights": later("param"),
    "gradients": later("grads"),
    "optimizer": later("optim"),
    "activations": later("activ"),
    "buffers": later("buff"),
    "fragments": later("frag"),
    "framework": later("frame"),
}
"""The parts of a stage's memory and the heads of their columns, short enough for 80 columns in all."""
_LEGEND = later(
    "param: weights; buff: short-lived tensors; frag: of no use between tensors; frame: context and communicators"
)
_FIXED = 74  # columns of the table beside the chip's name and the bar
_NOTHING = 1e-9  # a part of a step smaller than this share is rounding


def parts_used(evaluation: Evaluation, share: float = _NOTHING) -> dict[str, float]:
    """The parts of a step that take more than a share of it, by default more than nothing, in seconds."""
    least = share * evaluation.step_time_s
    return {name: value for name, value in evaluation.breakdown_s.items() if value > least}


class TimeBreakdown:
    """The parts of a step that take any time as bars; they sum to it."""

    def __init__(self, evaluation: Evaluation, strategy: Strategy) -> None:
        self._evaluation = evaluation
        self._names = part_names(layer_traffic([strategy]))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        total = self._evaluation.step_time_s
        parts = parts_used(self._evaluation)
        widest = max(parts.values())
        room = min(50, max(8, options.max_width - 56))
        figures = (Column(justify="right", no_wrap=True) for _ in range(2))
        columns = Column(style="dim", no_wrap=True), *figures, Column(style="cyan", no_wrap=True)
        table = Table.grid(*columns, padding=(0, 2, 0, 0))
        for name, value in parts.items():
            drawn = bar(value / widest, room, console.encoding)
            table.add_row(self._names.get(name, name), seconds(value, of=total), percent(value / total), drawn)
        table.add_row(say("step"), seconds(total), percent(1.0), "", style="bold")
        yield table


class MemoryByStage:
    """GiB per device, neighbouring stages with the same numbers on one line."""

    def __init__(self, stages: Sequence[StageEvaluation]) -> None:
        self._stages = stages

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        chip_width = max(cell_len(say("chip")), min(12, max(len(stage.chip) for stage in self._stages)))
        room = options.max_width - _FIXED - chip_width
        capacity = room >= 0  # what is usable stands in the table of plans too
        table = Table.grid(padding=(0, 1, 0, 0))
        heads = (
            say("layers"),
            *map(say, _PARTS.values()),
            say("total"),
            *((say("usable"),) if capacity else ()),
            say("full"),
        )
        table.add_column(say("stage"), no_wrap=True)
        table.add_column(say("chip"), width=chip_width, overflow="ellipsis", no_wrap=True)
        for head in heads:
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("", style="cyan", no_wrap=True)
        table.add_row(say("stage"), say("chip"), *heads, "", style="dim")
        for label, stage in _chosen(list(_alike(self._stages))):
            if stage is None:
                table.add_row(label, "…", style="dim")
                continue
            share = stage.memory.total / stage.capacity_bytes
            drawn = bar(share, min(30, room - 1), console.encoding) if room >= 8 else ""
            cells = _cells(stage) if capacity else _cells(stage)[:-1]
            table.add_row(label, *map(Text, cells), f"{share * 100:.0f} %", drawn, style="red" if share > 1 else None)
        yield table
        yield Text(say(_LEGEND), style="dim")


def _chosen(lines: list[_Line]) -> Iterator[tuple[str, StageEvaluation | None]]:
    """All lines when they are few; else of each chip type the first, the last and the fullest."""
    chosen = set(range(len(lines)) if len(lines) <= _MOST_LINES else ())
    if not chosen:
        for _, same in groupby(range(len(lines)), key=lambda index: lines[index][1].chip):
            block = list(same)
            chosen |= {block[0], block[-1], max(block, key=lambda index: lines[index][1].memory.total)}
    for shown, same in groupby(range(len(lines)), key=lambda index: index in chosen):
        run = list(same)
        if shown or len(run) == 1:
            yield from (lines[index] for index in run)
        else:
            first, last = lines[run[0]][0], lines[run[-1]][0]
            yield f"{first.partition('–')[0]}–{last.rpartition('–')[2]}", None


def _alike(stages: Sequence[StageEvaluation]) -> Iterator[_Line]:
    """(stage numbers, one of them) for each run of neighbours that show the same numbers."""
    for _, same in groupby(enumerate(stages), key=lambda pair: _cells(pair[1])):
        run = list(same)
        yield span_text(run[0][0], run[-1][0]), run[0][1]


def _cells(stage: StageEvaluation) -> tuple[str, ...]:
    parts = [getattr(stage.memory, part) for part in _PARTS]
    sizes = (*parts, stage.memory.total, stage.capacity_bytes)
    return (stage.chip, str(stage.layers), *(f"{bytes_to_gib(size):.1f}" for size in sizes))


def stage_times(stages: Sequence[StageEvaluation]) -> str:
    """The seconds of a microbatch on each stage, in a few words: `295.1 ms on stage 0, 301.0 ms on 1–7`."""
    times = [seconds(stage.microbatch_s) for stage in stages]
    if len(stages) == 1:
        return times[0]
    if len(list(groupby(times))) > _MOST_LINES:
        least, most = (pick(stages, key=lambda stage: stage.microbatch_s) for pick in (min, max))
        return say(
            "{microbatch_s} to {microbatch_s2} on a stage",
            microbatch_s=seconds(least.microbatch_s),
            microbatch_s2=seconds(most.microbatch_s),
        )
    return say("{times} on stages 0 to {stages}", times=runs(times), stages=len(stages) - 1)
