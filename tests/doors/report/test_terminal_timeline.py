"""The pipeline in the terminal: its cells have the time's shares, fit the width, and say the same in ASCII."""

from __future__ import annotations

import io
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from cpsolver.doors.report.pipeline_run import PipelineRun, Span, run_pipeline
from cpsolver.doors.report.pipeline_view import cells, chosen_stages, windows
from cpsolver.doors.report.terminal_timeline import TerminalTimeline, drawn
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.inputs.text import percent
from cpsolver.plans.strategy import StageGroup, Strategy
from tests.support.command import in_tmp, run, write  # noqa: F401
from tests.support.pictured import PLANS, judged

SPEC = """\
model: llama2-7b
cluster: {num_gpus: 16, chips: a800}
training: {global_batch_size: 64, sequence_length: 2048}
search: {top: 1, pin: {pp: 4}}
"""


class Ascii(io.StringIO):
    encoding = "ascii"


def run_of(name: str, sequences: int = 16) -> PipelineRun:
    _, strategy, evaluation = judged(name)
    return run_pipeline(strategy, evaluation, sequences, 1_000_000)


def shown(name: str, width: int, file: io.StringIO | None = None) -> list[str]:
    problem, strategy, evaluation = judged(name)
    file = io.StringIO() if file is None else file
    picture = TerminalTimeline(strategy, evaluation, strategy.microbatches(problem.batch))
    Console(file=file, width=width, highlight=False).print(picture)
    return file.getvalue().splitlines()


# What stands in a cell.


def test_cells_finer_than_the_passes_show_them_as_they_are() -> None:
    spans = [Span(0, "forward", 0, 1), Span(0, "idle", 1, 2), Span(0, "recompute", 2, 3), Span(0, "backward", 3, 5)]
    assert cells(spans, (0, 5), 5) == ["forward", "idle", "recompute", "backward", "backward"]
    assert cells(spans, (1, 3), 4) == ["idle"] * 2 + ["recompute"] * 2


def test_coarse_cells_keep_the_shares_of_time() -> None:
    spans = [
        Span(0, kind, at + start, at + end)  # type: ignore[arg-type]
        for at in range(100)
        for kind, start, end in (("forward", 0.0, 0.3), ("backward", 0.3, 0.9), ("idle", 0.9, 1.0))
    ]
    counted = Counter(cells(spans, (0, 100), 50))
    assert counted == {"forward": 15, "backward": 30, "idle": 5}


def test_what_does_not_happen_in_a_cell_is_never_shown_there() -> None:
    rng = np.random.default_rng(1)
    edges = np.sort(rng.uniform(0, 10, 200))
    kinds = ("forward", "backward", "idle")
    spans = [
        Span(0, kinds[number % 3], start, end)  # type: ignore[arg-type]
        for number, (start, end) in enumerate(pairwise(edges))
    ]
    bounds = np.linspace(edges[0], edges[-1], 41)
    for kind, low, high in zip(cells(spans, (edges[0], edges[-1]), 40), bounds[:-1], bounds[1:], strict=True):
        assert any(span.kind == kind and span.end_s > low and span.start_s < high for span in spans)


# What is drawn of a step.


def test_a_short_step_is_whole_and_a_long_one_has_a_start_and_an_end_of_one_length() -> None:
    short = run_of("1f1b", 4)
    assert windows(short) == [(0.0, short.end_s)]
    long = run_of("1f1b", 64)
    (start, filled), (draining, end) = windows(long)
    assert (start, end) == (0.0, long.end_s)
    assert filled == pytest.approx(end - draining)
    first_backward = [next(span for span in row if span.kind == "backward").end_s for row in long.by_stage]
    assert filled > max(first_backward)
    assert draining < min([span for span in row if span.kind == "forward"][-1].start_s for row in long.by_stage)


def test_stages_are_thinned_out_with_both_ends_kept() -> None:
    assert chosen_stages(5, 12) == [0, 1, 2, 3, 4]
    chosen = chosen_stages(64, 12)
    assert (len(chosen), chosen[0], chosen[-1]) == (12, 0, 63)


@pytest.mark.parametrize("name", PLANS)
def test_a_step_has_no_gap_and_no_overlap(name: str) -> None:
    for row in run_of(name).by_stage:
        assert row[0].start_s == 0
        assert all(abs(one.end_s - other.start_s) < 1e-9 for one, other in pairwise(row))
        assert row[-1].end_s == pytest.approx(run_of(name).end_s)


# The picture.


@pytest.mark.parametrize("name", [name for name in PLANS if name != "one stage"])
@pytest.mark.parametrize("width", [60, 80, 160])
def test_lines_fit_and_use_the_width(name: str, width: int) -> None:
    lines = shown(name, width)
    assert width - 8 <= max(map(cell_len, lines)) <= width
    stages = lines[1:5]
    assert len({cell_len(line) for line in stages}) == 1
    assert all("▒" in line and "█" in line and "·" in line for line in stages)


def test_ascii_says_the_same() -> None:
    told, plain = shown("recomputed", 80), shown("recomputed", 80, Ascii())
    letters = str.maketrans("▒█·░⋯", "FB.+~")
    assert [line.translate(letters) for line in told] == plain
    assert all(line.isascii() for line in plain)


def test_every_stage_says_how_long_it_waits() -> None:
    run = run_of("1f1b")
    for line, share in zip(shown("1f1b", 80)[1:5], run.idle_share, strict=True):
        assert line.endswith(percent(float(share)))
        waits = sum(span.end_s - span.start_s for span in run.by_stage[int(line[0])] if span.kind == "idle")
        after = run.end_s - run.pipeline_s - run.evaluation.stages[int(line[0])].after_s
        assert waits == pytest.approx(share * run.pipeline_s + after)


def test_a_deep_pipeline_has_twelve_lines_and_a_cut_one_says_so() -> None:
    strategy = Strategy(1, 32, 1, 1, 1, False, False, True, (StageGroup("a800", (1,) * 32),))
    problem = judged("1f1b")[0]
    run = run_pipeline(strategy, evaluate(problem, strategy), 64, 2 * 32 * 32)
    file = io.StringIO()
    Console(file=file, width=80).print(*drawn(run, 80))
    lines = file.getvalue().splitlines()
    assert sum("█" in line for line in lines[:-2]) == 12
    assert "drawn with 32 of 64 microbatches; 12 of 32 stages" in " ".join(lines).replace("  ", " ")
    assert "%" not in file.getvalue()


def test_reports_have_it_where_there_is_a_pipeline() -> None:
    text = run("solve", write("spec.yaml", SPEC), "--time").stdout
    assert "The pipeline over time: a step" in text
    flat = run("solve", write("spec.yaml", SPEC.replace("pp: 4", "pp: 1")), "--time").stdout
    assert "Where the time goes" in flat
    assert "The pipeline over time" not in flat
